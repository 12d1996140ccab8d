"""The paper, reproduced: one module per table, figure and theorem, each with an `EXPERIMENT`."""
