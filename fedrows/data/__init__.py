"""One federation: who holds which examples, and which rows they touch."""
