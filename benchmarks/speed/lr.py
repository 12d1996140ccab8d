"""Logistic regression at MovieLens' shapes: a simulated round against what one would do instead."""

from benchmarks.speed.one_model import comparison

main = comparison("lr", __doc__, blocks=7)
