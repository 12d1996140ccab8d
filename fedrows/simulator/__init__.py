"""The simulated fleet, and every fast way to run it."""
