"""One federation in memory: examples, index sets and slots of every client."""
