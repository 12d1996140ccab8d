"""The picture of docs/speed.md and the README: rounds/s on a logarithmic scale.

Contenders down, models across, first those on the CPU, then those on the GPU. `make_speed` reads
the results and writes the picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from card import card, text

Json = Mapping[str, Any]

MODELS = {"lr": "LR", "lstm": "LSTM", "din": "DIN", "own": "own module"}
WIDTH, LABELS, GAP, LINE = 880, 190, 14, 22
NUMBER = 44  # what is kept free for the number behind the longest bar
PANELS = ("lr", "lstm", "din")
TITLES = {
    "lr": "Logistic regression, K = 50",
    "lstm": "LSTM 2 × 100, K = 50",
    "din": "DIN, K = 100",
}
DRAWN = {
    "fedrows": "fedrows",
    "centralised": "centralised PyTorch",
    "captured": "… in a CUDA graph",
    "one by one": "one by one",
    "one by one, two processes": "… in two processes",
    "FedJAX": "FedJAX",
    "pfl": "pfl-research",
    "Flower": "Flower simulation",
}
PEERS = ("FedJAX", "pfl", "Flower")
STYLE = """
  .head, .us { font-weight: 600; fill: #1f2328 }
  .number { font-size: 12px; fill: #1f2328; font-variant-numeric: tabular-nums }
  .tick { font-size: 11px }
  .bar { fill: #afb8c1 }
  .bar.us { fill: #0f5fc2 }
  .bar.peer { fill: #d9803f }
  @media (prefers-color-scheme: dark) {
    .head, .us, .number { fill: #f0f6fc }
    .bar { fill: #57606a }
    .bar.us { fill: #6aaeff }
    .bar.peer { fill: #d9803f }
  }
"""


def draw(results: Mapping[str, Json]) -> list[str]:
    """The picture as lines of SVG."""
    sections = []
    where = {on_cpu(results): speeds(results), on_gpu(results): gpu_speeds(results)}
    for machine, rates in where.items():
        best = {name: fastest(rates_of) for name, rates_of in rates.items() if name in PANELS}
        if best:
            sections.append((best, machine))
    wide = (WIDTH - 24 - LABELS - len(PANELS) * GAP) / len(PANELS)
    parts, y = [text(24, 34, "Rounds per second, whole simulated rounds", "title")], 58
    parts.append(text(24, y, "longer is faster; every line is a factor of ten"))
    for column, name in enumerate(PANELS):
        parts.append(text(left(column, wide), y + 28, TITLES[name], "head"))
    y += 40
    for best, machine in sections:
        scales = {name: decades(list(rates_of.values())) for name, rates_of in best.items()}
        y += 24
        parts.append(text(24, y, machine, "head"))
        y += 8
        lines = [who for who in DRAWN if any(who in rates_of for rates_of in best.values())]
        floor = y + LINE * len(lines) + 2
        for column, name in enumerate(PANELS):
            if name in best:
                parts += grid(left(column, wide), wide - NUMBER, scales[name], y, floor)
        for who in lines:
            kind = "us" if who == "fedrows" else "peer" if who in PEERS else "plain"
            parts.append(text(24, y + 16, DRAWN[who], kind))
            for column, name in enumerate(PANELS):
                if (value := best.get(name, {}).get(who)) is None:
                    continue
                x, long = left(column, wide), (wide - NUMBER) * share(value, scales[name])
                parts.append(
                    f'<rect class="bar {kind}" x="{x:.1f}" y="{y + 4}" width="{long:.1f}" '
                    f'height="{LINE - 8}" rx="2"/>'
                )
                parts.append(text(x + long + 5, y + 16, short(value), "number"))
            y += LINE
        y = floor + 18
    height = y + 8
    title = "Rounds per second of fedrows, plain PyTorch and other simulators"
    return card(WIDTH, height, title, STYLE, parts)


def on_cpu(results: Mapping[str, Json]) -> str:
    """The CPU's machine and date."""
    source = next((x for name in ("peers", *MODELS) if (x := results.get(name))), None)
    return f"{source['cpu']}, {source['cores']} cores{dated(source)}" if source else ""


def on_gpu(results: Mapping[str, Json]) -> str:
    """The GPU's machine and date."""
    source = results.get("gpu")
    return f"One {source['gpu']}{dated(source)}" if source else ""


def fastest(rates: Json) -> dict[str, float]:
    """Rounds/s, the faster of two ways to train centrally."""
    every = dict(rates)
    bag = every.pop("centralised, nn.EmbeddingBag", 0)
    return {**every, "centralised": max(every["centralised"], bag)}


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that hold all values, the smallest of them with some bar left."""
    return math.floor(math.log10(min(values)) - 0.1), math.ceil(math.log10(max(values)))


def share(value: float, scale: tuple[int, int]) -> float:
    """How far along the scale a value is, from 0 to 1."""
    return (math.log10(value) - scale[0]) / (scale[1] - scale[0])


def grid(x: float, wide: float, scale: tuple[int, int], top: float, floor: float) -> list[str]:
    """A line for every power of ten, with its number below."""
    parts = []
    for power in range(scale[0], scale[1] + 1):
        at = x + wide * share(10.0**power, scale)
        parts.append(f'<path class="grid" d="M{at:.1f} {top}V{floor}"/>')
        label = f"{10 ** (power - 3)}k" if power >= 3 else f"{10.0**power:g}"
        parts.append(text(at, floor + 13, label, "tick middle"))
    return parts


def left(column: int, wide: float) -> float:
    """Where a model's bars begin."""
    return LABELS + column * (wide + GAP)


def speeds(results: Mapping[str, Json]) -> dict[str, Json]:
    """model → contender → rounds/s on the CPU."""
    with_peers = results.get("peers", {})
    all_of = {name: with_peers.get(name) or results.get(name) for name in MODELS}
    return {name: source["rounds_per_second"] for name, source in all_of.items() if source}


def gpu_speeds(results: Mapping[str, Json]) -> dict[str, Json]:
    """model → contender → rounds/s on the GPU, TF32 off."""
    source = results.get("gpu", {})
    return {name: source[f"{name}, TF32 off"] for name in MODELS if f"{name}, TF32 off" in source}


def dated(source: Json) -> str:
    """The day of a measurement, if it is known."""
    if "date" not in source:
        return ""
    return f"; {datetime.fromisoformat(source['date']):%d %B %Y}".replace("; 0", "; ")


def short(number: float) -> str:
    """A number with three digits that count."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}" if number > 0 else "0"
