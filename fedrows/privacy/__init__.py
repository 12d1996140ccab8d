"""Privacy: mechanisms and protocols for heat, index sets and updates."""
