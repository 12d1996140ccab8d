"""Models by name. Each file has a `build(data, seed)` that returns a `Model` for the data."""
