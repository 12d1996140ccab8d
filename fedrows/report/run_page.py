"""The page put together: a run folder's files → charts, tables and words → `page.html`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrows.catalogue import BASELINE, REFERENCE, colours
from fedrows.measure.metric_choice import about
from fedrows.measure.summary import (
    VIRTUAL,
    Summary,
    Target,
    best_title,
    by_algorithm,
    display,
    metrics_of,
    number,
    show,
    show_bytes,
    show_rounds,
    show_speed_up,
    show_virtual,
    summarise,
    virtual_of,
)
from fedrows.report import chart, exchange, line_styles, page, payload, result_sentences, spent
from fedrows.report.artefact import STYLE_COUNT, Figure
from fedrows.report.folder import read_json, read_metrics
from fedrows.report.run_charts import (
    HeatBuckets,
    anchor_levels,
    curve_panels,
    heat_panel,
    time_panels,
)
from fedrows.runs.folder import ANCHORS

HIDDEN = "A model that is differentially private for every user."


def render(folder: Path, private: bool = False) -> str:
    """The whole page as text. private: with what no ε covers, of a run under privacy full."""
    config, data = read_json(folder / "config.json"), read_json(folder / "data.json")
    lines = read_metrics(folder / "metrics.jsonl")
    hidden = spent.covered(config) and not private
    if hidden:
        lines, data = spent.without_private(lines, data)
    summary = summarise(lines, _target(folder), number(data.get("bytes_full_model")))
    curves = by_algorithm(lines)
    # FedSubAvg and FedAvg first, in the order of the styles, so that every report reads alike
    own = colours()
    order = sorted(curves, key=lambda name: (own.get(name, STYLE_COUNT), name))
    summary["algorithms"].sort(key=lambda a: order.index(a["name"]))
    by_title = line_styles.assign([display(name) for name in order])
    styles = {name: by_title[display(name)] for name in order}
    buckets = HeatBuckets({name: curves[name] for name in order})
    levels = {} if hidden else anchor_levels(read_json(folder / ANCHORS))
    panels = [
        *curve_panels(summary, curves, order, data, levels),
        *time_panels(summary, curves, order),
    ]
    cold = buckets.panels(order)
    heat = [heat_panel(group) for group in data.get("heat") or []]
    figures = {
        "curves": Figure("curves", "Learning curves", tuple(p["panel"] for p in (*panels, *cold))),
        "heat": Figure("heat", "Heat of the features", tuple(p["panel"] for p in heat)),
    }
    _draw(figures["curves"], [*panels, *cold])
    _draw(figures["heat"], heat)
    task, kind = payload.name_of(config.get("task")), config.get("kind", "run")
    return page.build(
        "run_page.html",
        payload.figures_json(figures, {})[0],
        eyebrow=list(filter(None, ("comparison" if kind == "compare" else "run", task))),
        task=task,
        version=config.get("fedrows"),
        hidden=hidden,
        headline=HIDDEN if hidden else result_sentences.headline(summary),
        lede=" ".join(result_sentences.lede(summary, buckets.losses())),
        facts=_facts(config, summary, data),
        legend=[(i, display(n), chart.swatch(styles[n])) for i, n in enumerate(order)],
        waiting=[display(n) for n in _configured(config) if n not in curves],
        race=_race(summary, styles),
        goal=result_sentences.goal(summary) if summary["target"]["rule"] else "",
        panels=panels,
        columns=_columns(summary),
        rows=_rows(summary, styles),
        single=_single_seeds(summary),
        cold=cold,
        exchange=exchange.tables(exchange.read_rounds(folder / "rounds.jsonl")),
        spent=spent.table(summary, config),
        heat=heat,
        traffic=_traffic(summary, styles),
        full_model=show_bytes(number(data.get("bytes_full_model"))),
        data_facts=_data_facts(data),
        settings=_settings(config),
        config_text=json.dumps(config, indent=2, ensure_ascii=False),
        command=payload.command_of(config),
    )


def _target(folder: Path) -> Target:
    """The target settings with which `summary.json` was made; the numbers are computed anew."""
    chosen = read_json(folder / "summary.json").get("target") or {}
    known = {key: chosen[key] for key in ("metric", "value", "rounds") if key in chosen}
    return Target(**known)


def _draw(figure: Figure, panels: Sequence[dict[str, Any]]) -> None:
    """Adds its place in the figure and its drawing, if it has points, to every panel."""
    styles = line_styles.styles(figure)
    keys = {name: key for key, name in enumerate(line_styles.names(figure))}
    for key, panel in enumerate(panels):
        drawn = any(curve.x for curve in panel["panel"].curves)
        panel["place"] = key
        panel["svg"] = chart.panel_chart(panel["panel"], keys, styles) if drawn else ""


def _race(summary: Summary, styles: dict[str, str]) -> list[dict[str, Any]]:
    """Bars of the rounds to the target, the quickest first."""
    if not summary["target"]["rule"]:
        return []
    longest = max(a["rounds"] for a in summary["algorithms"])
    runs = [a for a in summary["algorithms"] if a["rounds_to_target"]["values"]]
    runs.sort(key=result_sentences.order)
    bars = []
    for a in runs:
        mean = a["rounds_to_target"]["mean"]
        share = (a["rounds"] if mean is None else mean) / longest if longest else 0.0
        bars.append(
            {
                "name": display(a["name"]),
                "bar": chart.bar(share, styles[a["name"]], open_ended=mean is None),
                "value": show_rounds(a),
                "note": show_speed_up(a["speed_up"]) if a["name"] != BASELINE else "",
            }
        )
    return bars


def _traffic(summary: Summary, styles: dict[str, str]) -> list[dict[str, Any]]:
    runs = [a for a in summary["algorithms"] if a["bytes_down"] or a["bytes_up"]]
    top = summary["bytes_full_model"] or max(
        (a[k] or 0 for a in runs for k in ("bytes_down", "bytes_up")), default=0
    )
    return [
        {
            "name": display(a["name"]),
            "down": chart.bar((a["bytes_down"] or 0) / top, styles[a["name"]]),
            "up": chart.bar((a["bytes_up"] or 0) / top, styles[a["name"]]),
            "down_text": show_bytes(a["bytes_down"], a["down_share"]),
            "up_text": show_bytes(a["bytes_up"], a["up_share"]),
        }
        for a in runs
    ]


def _columns(summary: Summary) -> list[str]:
    race = ["Rounds to target", "Speed-up"] if summary["target"]["rule"] else []
    return [
        "Algorithm",
        *race,
        *(best_title(summary, m) for m in metrics_of(summary)),
        "Seconds",
        "Rounds/s",
        *(VIRTUAL[key] for key in virtual_of(summary)),
    ]


def _rows(summary: Summary, styles: dict[str, str]) -> list[dict[str, Any]]:
    """The summary table; the best federated value of a metric is marked."""
    runs = summary["algorithms"]
    winners = {}
    for m in metrics_of(summary):
        means = [a["metrics"][m]["best"]["mean"] for a in runs if a["name"] != REFERENCE]
        known = [v for v in means if v is not None]
        winners[m] = (max if about(m)[1] else min)(known) if len(known) > 1 else None
    rows = []
    for a in runs:
        cells = []
        if summary["target"]["rule"]:
            cells += [(_split(show_rounds(a)), False), ((show_speed_up(a["speed_up"]), ""), False)]
        for m, winner in winners.items():
            stat = a["metrics"][m]["best"]
            best = winner is not None and stat["mean"] == winner and a["name"] != REFERENCE
            cells.append((_split(show(stat, about(m)[2])), best))
        cells += [(_split(show(a[key], None)), False) for key in ("seconds", "rounds_per_second")]
        cells += [(_split(show_virtual(a, key)), False) for key in virtual_of(summary)]
        rows.append(
            {"name": display(a["name"]), "swatch": chart.swatch(styles[a["name"]]), "cells": cells}
        )
    return rows


def _single_seeds(summary: Summary) -> dict[str, Any]:
    """Best and final values seed by seed, for the folded table."""
    measured = metrics_of(summary)
    rows = []
    for a in summary["algorithms"]:
        for i, seed in enumerate(a["seeds"]):
            cells = [display(a["name"]), str(seed)]
            for m in measured:
                for which in ("best", "final"):
                    v = a["metrics"][m][which]["values"][i]
                    cells.append("–" if v is None else f"{v:.{about(m)[2]}f}")
            rows.append(cells)
    titles = [
        title
        for m in measured
        for title in (_lower(best_title(summary, m)), f"final {about(m)[0]}")
    ]
    return {"columns": ["algorithm", "seed", *titles], "rows": rows}


def _facts(config: dict[str, Any], summary: Summary, data: dict[str, Any]) -> list[tuple[str, str]]:
    plan = config.get("plan") or {}
    facts = [
        ("Task", payload.name_of(config.get("task"))),
        ("Clients", f"{data['clients']:,}" if data.get("clients") else ""),
        ("Per round", f"{plan['clients_per_round']:,}" if plan.get("clients_per_round") else ""),
        ("Rounds", f"{max(a['rounds'] for a in summary['algorithms']):,}"),
        ("Seeds", str(max(len(a["seeds"]) for a in summary["algorithms"]))),
    ]
    return [(term, value) for term, value in facts if value]


def _data_facts(data: dict[str, Any]) -> list[tuple[str, str]]:
    terms = {
        "clients": "Clients",
        "clients_without_training_data": "… without training data",
        "train_examples": "Training examples",
        "validation_examples": "Validation examples",
        "test_examples": "Test examples",
        "examples_per_client": "Examples per client",
        "one_class_clients": "One-class clients, left out of GAUC",
    }
    facts = []
    for key, term in terms.items():
        value = number(data.get(key))
        if value is not None:
            facts.append((term, f"{value:,.1f}".removesuffix(".0")))
    if (share := number(data.get("unseen_target_share"))) is not None:
        facts.append(
            (
                "Test examples whose target nobody trained on",
                f"{100 * share:.2f}\N{NO-BREAK SPACE}%",
            )
        )
    if (best := number(data.get("best_loss"))) is not None:
        facts.append(("Best achievable test loss", f"{best:.4f}"))
    if (size := number(data.get("bytes_full_model"))) is not None:
        facts.append(("Full model", show_bytes(size)))
    return facts


def _settings(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The configuration as sections of name and value."""
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            sections.append((key, [(str(k), _plain(v)) for k, v in value.items()]))
        elif isinstance(value, list):
            items = [v if isinstance(v, dict) else {"name": v} for v in value]
            options = [
                (
                    payload.name_of(v),
                    ", ".join(f"{k} = {_plain(o)}" for k, o in v.items() if k != "name")
                    or "defaults",
                )
                for v in items
            ]
            sections.append((key, options))
    return sections


def _configured(config: dict[str, Any]) -> list[str]:
    chosen = config.get("algorithms") or [config.get("algorithm")]
    return [name for entry in chosen if (name := payload.name_of(entry))]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _split(text: str) -> tuple[str, str]:
    """'0.61 ± 0.02 (2 of 3 seeds)' as its number and the small print."""
    main, _, rest = text.partition(" ")
    return (text, "") if main in (">", "–") else (main, rest)
