"""What devices behind a gateway show to whom, in the lines of `fedrows privacy explain`."""

from __future__ import annotations


def explain_devices(secret_sums: bool) -> list[str]:
    """Who learns what of a device. secret_sums: whether the run hides single updates."""
    title = "Devices behind a gateway (`fedrows deploy gateway`):"
    if secret_sums:
        return [
            title,
            "  A gateway declines this run: devices compute no masks of secure sums, so their",
            "  index sets and updates would reach it in the clear. Choose --privacy clear.",
        ]
    return [
        title,
        "  the gateway learns of each device   its address, when it is there, its index sets, how",
        "                                      many examples it has, and every single update",
        "  the server learns of each device    what it learns of a client of a node: its name, its",
        "                                      index sets, its examples' number, single updates",
        "  other devices learn                 nothing but the model's rows that they hold",
        "  what never leaves a device          its examples, rows of local tables, kept state, if",
        "                                      the gateway's program is an honest one",
    ]
