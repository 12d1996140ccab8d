"""Data sets by name. Each file has a `TASK`, and a new file is found by its name."""
