"""An LSTM of 2 × 100 over 30 words: a simulated round against what one would do instead."""

from benchmarks.speed.one_model import comparison

main = comparison("lstm", __doc__)
