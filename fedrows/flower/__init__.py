"""The same rounds over a real network: Flower carries the messages, and rows move, not models."""
