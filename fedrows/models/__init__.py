"""Models by name: each file has a `build(data, seed)` that gives a `Model` for that data."""
