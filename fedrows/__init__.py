"""fedrows: federated learning that moves rows, not models."""

__version__ = "0.1.0"
