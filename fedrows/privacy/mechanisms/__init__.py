"""Mechanisms of central differential privacy, one class per file, found by its name."""
