"""Data sets by name: each file has a `TASK`, and a new file is found by its name."""
