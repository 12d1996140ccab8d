"""Reproduces the paper: one module per table, figure and theorem, each with an `EXPERIMENT`."""
