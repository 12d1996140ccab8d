"""The same rounds over a real network: Flower carries the letters, and rows move, not models."""
