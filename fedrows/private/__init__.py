"""Private runs: the protocols and mechanisms of `privacy`, put around a simulated fleet."""
