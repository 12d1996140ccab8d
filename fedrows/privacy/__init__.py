"""Privacy: heat, index sets and updates without showing any one client's features."""
