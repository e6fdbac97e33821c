"""Shells around the coordinators: groups, transactions, share groups, producer ids."""
