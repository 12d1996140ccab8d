"""Writers of measurements. Each file has `opened(watching)`, which returns an observer or None."""
