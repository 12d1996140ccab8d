"""Colour and dash of the algorithms: the same in every report, page and picture."""

from __future__ import annotations

# Those everyone knows have a style of their own; a new one takes the next free one.
STYLES = {
    "fedsubavg": 0,
    "fedavg": 1,
    "centralsgd": 2,
    "fedprox": 3,
    "scaffold": 4,
    "fedadam": 5,
    "scaffoldapprox": 6,
    "holdersmean": 7,
    "steppedmean": 8,
}
STYLE_COUNT = 12  # .s0 to .s11 of style.css
