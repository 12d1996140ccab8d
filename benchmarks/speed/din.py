"""DIN at Amazon's shapes, a history of 100: a simulated round against what one would do instead."""

from benchmarks.speed.one_model import comparison

main = comparison("din", __doc__)
