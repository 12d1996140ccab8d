"""Models by name: each file has a `build(data)` that gives a `Model` for that data."""
