"""Connectors by the class names that people have in their files: a module for each counterpart, with its `PLUGINS`."""
