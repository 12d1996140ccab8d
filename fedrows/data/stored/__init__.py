"""Federations on disk, in columns that are mapped into memory."""
