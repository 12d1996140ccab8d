"""Federated algorithms, one final class per file. A new file is found by its name."""
