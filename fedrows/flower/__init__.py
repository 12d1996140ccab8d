"""Runs the same rounds over a real network. Flower carries the messages, which hold rows."""
