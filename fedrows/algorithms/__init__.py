"""Federated algorithms, one final class a file; a new file is found by its name."""
