"""The figures as PNG and SVG for a paper, drawn by matplotlib in the colours of the page."""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedrows.report import line_styles
from fedrows.report.artefact import Curve, Figure, Panel
from fedrows.report.axes import Pieces, lay_out, whole_numbers
from fedrows.report.labels import labels
from fedrows.report.line_styles import GUIDE, Ink
from fedrows.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = ("svg", "png")
WIDTH, HEIGHT = 3.4, 2.5  # inches of one panel
DPI = 200
MARKERS = ("o", "s", "D", "^")
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e9e6df",
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedrows",
}


def is_drawn(figure: Figure, places: Sequence[Path]) -> bool:
    """Whether these files show this figure, drawn as it would be now: the SVG says which it is."""
    try:
        with places[0].open("rb") as file:
            same = _mark(figure).encode() in file.read(4000)
        return same and all(path.stat().st_size > 0 for path in places)
    except OSError:
        return False


def draw(figure: Figure) -> tuple[bytes, ...]:
    """The figure as a file of each of the `ENDINGS`; needs matplotlib."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    count = max(1, len(figure.panels))
    columns = count if count <= 3 else 2 if count == 4 else 3
    rows = math.ceil(count / columns)
    styles, inks = line_styles.styles(figure), line_styles.inks()
    # Guides have labels of their own.
    names = [name for name in line_styles.names(figure) if styles[name] != GUIDE]
    entry = 0.6 + 0.065 * max(map(len, names), default=0)  # inches of a name in the legend, about
    beside = max(1, min(len(names), int(WIDTH * columns / entry)))
    below = 0.16 * math.ceil(len(names) / beside) if len(names) > 1 else 0.0
    with matplotlib.rc_context(cast(Any, STYLE)):
        size = (WIDTH * columns, HEIGHT * rows + below)
        sheet = Sheet(figsize=size, layout="constrained")
        FigureCanvasAgg(sheet)
        axes = sheet.subplots(rows, columns, squeeze=False).ravel()
        for ax, panel in zip(axes, figure.panels, strict=False):
            _panel(ax, panel, styles, inks)
        for ax in axes[len(figure.panels) :]:
            ax.set_axis_off()
        handles: dict[str, Any] = {}
        for ax in axes:
            handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        ordered = [name for name in names if name in handles]
        if len(ordered) > 1:
            sheet.legend(
                [handles[name] for name in ordered],
                [_text(name) for name in ordered],
                loc="outside lower center",
                ncols=beside,
            )
        return tuple(_bytes(sheet, ending, _mark(figure)) for ending in ENDINGS)


def _panel(ax: Axes, panel: Panel, styles: dict[str, str], inks: dict[str, Ink]) -> None:
    drawn = False
    shape = lay_out(panel)
    for curve, pieces in shape.curves:
        style = styles[curve.name]
        _curve(ax, curve, pieces, style, inks[style])
        drawn |= bool(pieces)
    ends = {curve.name: (pieces[0][0], pieces[-1][-1]) for curve, pieces in shape.curves if pieces}
    for label in labels(shape):
        end = ends[label.name][label.right]
        ax.annotate(
            _text(label.name),
            (end.x, end.y),
            xytext=(0, 1 if label.above else -1),
            textcoords="offset points",
            ha="right" if label.right else "left",
            va="bottom" if label.above else "top",
            fontsize=6.5,
            zorder=5,
        )
    if drawn and panel.log_x:
        ax.set_xscale("log")
    elif drawn and whole_numbers(panel):
        ax.locator_params(axis="x", integer=True)
    if drawn and panel.log_y:
        ax.set_yscale("log")
    ax.set(title=_text(panel.title), xlabel=_text(panel.x), ylabel=_text(panel.y))


def _curve(ax: Axes, curve: Curve, pieces: Pieces, style: str, ink: Ink) -> None:
    """Draws what can be drawn of a curve."""
    label: str | None = curve.name
    if curve.name.startswith("_"):  # matplotlib would leave it out of the legend
        label = f"\u200b{curve.name}"
    for piece in pieces:
        xs, ys = [p.x for p in piece], [p.y for p in piece]
        lows, highs = [p.low for p in piece], [p.high for p in piece]
        spread = any(high > low for low, high in zip(lows, highs, strict=True))
        if curve.kind == "dots" or len(piece) == 1:
            mark = MARKERS[int(style[1:]) % len(MARKERS)] if style != GUIDE else "o"
            size = 2.0 if len(xs) > 150 else 3.5
            ax.plot(xs, ys, mark, color=ink.colour, ms=size, mew=0, label=label)
            if spread:
                ax.vlines(xs, lows, highs, color=ink.colour, lw=0.8, alpha=0.6)
        else:
            dash = (0, tuple(length / ink.width for length in ink.dash)) if ink.dash else "solid"
            ax.plot(xs, ys, color=ink.colour, ls=dash, lw=0.7 * ink.width, label=label)
            if spread:
                ax.fill_between(xs, lows, highs, color=ink.colour, alpha=0.18, lw=0)
        label = None


def _text(text: str) -> str:
    """Text in which $ begins no formula."""
    return text.replace("$", r"\$")


def _mark(figure: Figure) -> str:
    """A hash of the figure and of how this version draws it."""
    inks = [line_styles.inks()[style] for style in line_styles.styles(figure).values()]
    content = repr((figure, inks, STYLE, WIDTH, HEIGHT, __version__, version("matplotlib")))
    return f"fedrows figure {hashlib.sha256(content.encode()).hexdigest()}"


def _bytes(sheet: Any, ending: str, mark: str) -> bytes:
    file = io.BytesIO()
    unwanted = "Date" if ending == "svg" else "Software"  # the same figure, the same bytes
    metadata = {"Description": mark, unwanted: None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in a rare script
        sheet.savefig(file, format=ending, dpi=DPI, metadata=metadata)
    return file.getvalue()
