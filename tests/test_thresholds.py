"""How many parties must take part: no two lists of survivors, and never one honest party alone."""

from fedrows.privacy.thresholds import lowest_threshold


def test_the_lowest_threshold_leaves_no_room_for_two_lists_of_survivors() -> None:
    assert [lowest_threshold(n, 1) for n in (3, 4, 5, 6, 12)] == [3, 3, 4, 4, 7]
    for n in range(3, 40):
        for colluding in range(n - 1):
            t = lowest_threshold(n, colluding)
            assert 2 * t > n + colluding
            assert t >= colluding + 2
            assert 2 * (t - 1) <= n + colluding or t - 1 < colluding + 2
