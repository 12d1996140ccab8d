"""The representation: which rows, take / total / add, and how many clients hold each."""
