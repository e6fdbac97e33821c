"""One file per counterpart, source and sink together; `registry` finds them by name."""
