"""How many looks (colour and dash) the style sheet has.

An algorithm may name its own (`Algorithm.colour`); the others take the next free one.
"""

from __future__ import annotations

STYLE_COUNT = 12  # .s0 to .s11 of style.css
