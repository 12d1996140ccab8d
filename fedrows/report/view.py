"""A result in a notebook: a small table and the curves, in one piece of HTML without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from fedrows.measure.metric_choice import Line
from fedrows.measure.summary import by_algorithm, summarise, table
from fedrows.report import line_styles
from fedrows.report.artefact import Figure
from fedrows.report.chart import panel_chart, swatch
from fedrows.report.run_charts import curve_panels

MOST = 4  # charts

STYLE = """
.fedrows-view { max-width: 60rem; font: 13px system-ui, sans-serif; }
.fedrows-view .charts { display: flex; flex-wrap: wrap; gap: 8px 16px; }
.fedrows-view figure { margin: 8px 0; flex: 1 1 260px; max-width: 420px; }
.fedrows-view svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
.fedrows-view svg.swatch { width: 28px; height: 10px; }
.fedrows-view .chart text { font: 12px system-ui, sans-serif; fill: currentColor; opacity: .75; }
.fedrows-view .grid { stroke: currentColor; opacity: .12; fill: none; }
.fedrows-view .axis, .fedrows-view .mark { stroke: currentColor; opacity: .5; fill: none; }
.fedrows-view .tick.y { text-anchor: end; dominant-baseline: central; }
.fedrows-view .tick.x { text-anchor: middle; }
.fedrows-view .end { text-anchor: end; }
.fedrows-view .line { fill: none; stroke: var(--c); stroke-width: var(--w);
  stroke-dasharray: var(--dash); }
.fedrows-view .band { fill: var(--c); opacity: .13; }
.fedrows-view .dot { fill: var(--c); }
.fedrows-view td, .fedrows-view th { text-align: right; padding: 2px 8px; }
.fedrows-view td:first-child, .fedrows-view th:first-child { text-align: left; }
"""


def view(title: str, lines: Sequence[Line]) -> str:
    """The table and the curves of metric lines; the title alone if there are none."""
    head = Markup("<div>{}</div>").format(title)
    if not lines:
        return f'<div class="fedrows-view">{head}</div>'
    summary, curves = summarise(lines), by_algorithm(lines)
    panels = [x["panel"] for x in curve_panels(summary, curves, list(curves), {}, {})][:MOST]
    figure = Figure("view", title, tuple(panels))
    styles, names = line_styles.styles(figure), line_styles.names(figure)
    keys = {name: key for key, name in enumerate(names)}
    charts = Markup("").join(
        Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(
            panel.title, panel_chart(panel, keys, styles)
        )
        for panel in panels
    )
    legend = Markup(" ").join(
        Markup("{}&nbsp;{}").format(swatch(styles[name]), name) for name in names
    )
    return (
        f'<div class="fedrows-view"><style>{STYLE}{_inks()}</style>{head}'
        f'{_table(*table(summary))}<div>{legend}</div><div class="charts">{charts}</div></div>'
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _inks() -> str:
    """The colours and dashes of curves, the same as on the pages."""
    return "".join(
        f".fedrows-view .{style} {{ --c: {ink.colour}; --w: {ink.width}; "
        f"--dash: {' '.join(map(str, ink.dash)) or 'none'}; }}\n"
        for style, ink in line_styles.inks().items()
    )
