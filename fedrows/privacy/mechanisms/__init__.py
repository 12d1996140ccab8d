"""Mechanisms of central differential privacy; a file here has a class of its own name."""
