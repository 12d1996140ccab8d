"""Federations that do not fit into memory: columns in files, mapped when opened."""
