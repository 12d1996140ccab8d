"""The optimisers that a client steps with, whose state starts at zero in every round."""
