"""Scripts that measure fedrows; those in `speed` are also run by `fedrows bench NAME`."""
