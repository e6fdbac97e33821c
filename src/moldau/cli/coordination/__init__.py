"""Commands around groups and transactions."""
