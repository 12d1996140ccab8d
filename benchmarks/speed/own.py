"""A module with no layer of fedrows in it: a simulated round against what one would do instead."""

from benchmarks.speed.one_model import comparison

main = comparison("own", __doc__)
