"""Writes the tables of docs/speed.md, and draws its pictures, from benchmarks/results/*.json.

    make bench                          measures, then comes here
    python docs/make_speed.py           from what was measured before

Only what stands between the two markers of the page is written; all numbers in it are measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import draw_sweeps
import page_parts
from draw_speed import MODELS, Json, dated, draw, gpu_speeds, short, speeds

ROOT = Path(__file__).parent.parent
CONTENDERS = {  # as they are called in the results, and on the page
    "fedrows": "**fedrows**, FedSubAvg",
    "centralised": "PyTorch, centralised",
    "centralised, nn.EmbeddingBag": "PyTorch, centralised, `nn.EmbeddingBag`",
    "captured": "PyTorch, centralised, in a CUDA graph",
    "one by one": "PyTorch, one client after another",
    "one by one, two processes": "PyTorch, the same in two processes",
    "FedJAX": "FedJAX",
    "pfl": "pfl-research",
    "Flower": "Flower",
}
NAMES = {"flower": "Flower", "pfl": "pfl-research", "fedjax": "FedJAX"}


def main(folder: Path, page: Path, picture: Path) -> None:
    """Reads all results, rewrites the page's measured part, draws the pictures."""
    results = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    sections = (cpu, peers, gpu, cohort, tables, billion, memory, ranks, bars)
    measured = "\n\n".join(part for section in sections if (part := section(results)))
    text = page_parts.filled(page, page.read_text("utf-8"), {"measured": f"\n{measured}\n\n"})
    page.write_text(text, "utf-8")
    picture.write_text("\n".join(draw(results)) + "\n", "utf-8")
    sweeps = picture.with_name(f"{picture.stem}-sweeps{picture.suffix}")
    sweeps.write_text("\n".join(draw_sweeps.draw(results)) + "\n", "utf-8")


def cpu(results: Mapping[str, Json]) -> str:
    """The table of contenders on the CPU."""
    rates = speeds(results)
    if not rates:
        return ""
    sources = [x for name in ("peers", *MODELS) if (x := results.get(name))]
    return f"## On a CPU\n\n{measured_on(sources)}\n\n{contest(rates)}"


def gpu(results: Mapping[str, Json]) -> str:
    """The table of contenders on the GPU."""
    rates, result = gpu_speeds(results), results.get("gpu", {})
    if not rates:
        return ""
    where = f"One {result['gpu']}, TF32 off, PyTorch {result['torch']}{dated(result)}."
    how = "`python benchmarks/gpu.py --out benchmarks/results/gpu.json`"
    return f"## On a GPU\n\n{where} {how}\n\n{contest(rates)}"


def contest(rates: Mapping[str, Json]) -> str:
    """Rounds/s of everyone, and how many times that fedrows is."""
    rows = []
    for name, shown in CONTENDERS.items():
        if not any(name in speeds_of for speeds_of in rates.values()):
            continue
        cells = []
        for speeds_of in rates.values():
            times = (
                f" ({short(speeds_of['fedrows'] / speeds_of[name])} ×)" if name in speeds_of else ""
            )
            cells.append(
                short(speeds_of[name]) + times * (name != "fedrows") if name in speeds_of else ""
            )
        rows.append([shown, *cells])
    return table(["rounds/s (fedrows is … times that)", *(MODELS[name] for name in rates)], rows)


def peers(results: Mapping[str, Json]) -> str:
    """Which peers there were, and how they were set up."""
    lines = []
    for name, result in results.get("peers", {}).get("peers", {}).items():
        if "missing" in result:
            lines.append(f"- {NAMES[name]} was not there: {result['missing']}")
            continue
        versions = ", ".join(
            f"{package} {version}" for package, version in result["versions"].items()
        )
        losses = "; ".join(
            f"{MODELS[model]} from {before:.3f} to {after:.3f}"
            for model, (before, after) in result["loss"].items()
        )
        lines.append(f"- {NAMES[name]} ({versions}): {result['how']} Its loss: {losses}.")
    return "\n".join(lines)


def cohort(results: Mapping[str, Json]) -> str:
    """What a client costs in cohorts of every size."""
    result = results.get("cohort")
    if not result:
        return ""
    head = ["K", "µs a client", "peak memory, MiB", "bytes down a client", "bytes up a client"]
    rows = [
        [f"{x['clients']:,}", short(x["microseconds_per_client"]),
         f"{x['peak_bytes'] / 2**20:.0f}", f"{x['bytes_down']:,.0f}", f"{x['bytes_up']:,.0f}"]
        for x in result["rows"]
    ]  # fmt: skip
    return f"## The size of the cohort\n\n{measured_on([result])}\n\n{table(head, rows)}"


def tables(results: Mapping[str, Json]) -> str:
    """How a round's time grows with the table."""
    result = results.get("scale")
    if not result:
        return ""
    head = [
        "rows",
        "the same ids",
        "ids at random",
        "a bare gather and add",
        "MiB beside the table",
    ]
    rows = [
        [f"{int(size):,}", *(f"{x[kind]:.2f} ×" for kind in ("same", "spread", "bare")),
         f"{result['mebibytes_beyond_the_table'][size]:.0f}"]
        for size, x in result["growth"].items()
    ]  # fmt: skip
    first = f"The time of a round, divided by its time in a table of {result['small']:,} rows. All "
    first += f"tables are {result['width']} wide."
    return f"## The size of the table\n\n{first} {measured_on([result])}\n\n{table(head, rows)}"


def billion(results: Mapping[str, Json]) -> str:
    """What rounds on a mapped table cost."""
    result = results.get("billion")
    if not result:
        return ""
    head = ["", "rows touched", "ms a round", "ms for checkpoints, by round", "resident, MiB",
            "bytes of disk a touched row", "at most, with the log"]  # fmt: skip
    rows = [
        [name, f"{x['touched']:,}", short(x["milliseconds"]), short(x["saving_milliseconds"]),
         f"{x['resident'] / 2**20:,.0f}", f"{x['disk_per_row']:.0f}",
         f"{x['disk_per_row_with_log']:.0f}"]
        for name, x in result.items() if isinstance(x, dict) and "touched" in x
    ]  # fmt: skip
    first = f"{result['rounds']} rounds on a mapped table of {result['rows']:,} rows, "
    first += f"{result['width']} wide. The ids are drawn at random."
    return (
        f"## A table larger than memory\n\n{first} {measured_on([result])}\n\n{table(head, rows)}"
    )


def memory(results: Mapping[str, Json]) -> str:
    """How long runs grow."""
    result = results.get("memory")
    if not result:
        return ""
    count = len(next(iter(result["resident_bytes"].values())))
    shown = [place for place in range(count) if place in (0, count // 2, count - 1)]
    head = ["resident MiB after round", *(f"{result['every'] * (place + 1):,}" for place in shown)]
    rows = [
        [MODELS[name], *(f"{values[place] / 2**20:.1f}" for place in shown)]
        for name, values in result["resident_bytes"].items()
    ]
    return f"## A long run\n\n{measured_on([result])}\n\n{table(head, rows)}"


def ranks(results: Mapping[str, Json]) -> str:
    """Several processes against one."""
    result = results.get("ranks", {})
    rates = {name: result[name]["rounds_per_second"] for name in MODELS if name in result}
    if not rates:
        return ""
    names = list(dict.fromkeys(who for each in rates.values() for who in each))
    rows = [[who, *(short(each[who]) if who in each else "" for each in rates.values())]
            for who in names]  # fmt: skip
    shown = table(["rounds/s", *(MODELS[name] for name in rates)], rows)
    return f"## Several processes\n\n{measured_on([result])}\n\n{shown}"


def bars(results: Mapping[str, Json]) -> str:
    """Every goal and what was measured, in one table."""
    rows = []
    for name, result in sorted(results.items()):
        parts = {"": result, **{f"{key}, ": x for key, x in result.items() if isinstance(x, dict)}}
        for part, inner in parts.items():
            for bar in inner.get("bars") or ():
                side = "≥" if "at_least" in bar else "≤"
                wanted = bar.get("at_least", bar.get("at_most"))
                rows.append([f"`{name}`", f"{part}{bar['what']}", f"{bar['value']:.3g}",
                             f"{side} {wanted:g}", "yes" if bar["met"] else "**no**"])  # fmt: skip
    if not rows:
        return ""
    head = ["benchmark", "what", "measured", "goal", "reached"]
    return f"## Goals and results\n\n{table(head, rows)}"


def measured_on(sources: Sequence[Json]) -> str:
    """The machine, the versions, the dates and the commands, in a line or two."""
    first = sources[0]
    commands = ", ".join(f"`{x['command']}`{dated(x)}".replace("; ", " on ") for x in sources)
    return (
        f"{first['cpu']}, {first['cores']} cores, threads: {first['threads']}, "
        f"{first['memory_gib']:.0f} GiB; PyTorch {first['torch'].split('+')[0]}, fedrows "
        f"{first['fedrows']}. {commands}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of numbers."""
    return page_parts.table(head, rows, words=1).rstrip()


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    usual = [
        ROOT / "benchmarks" / "results",
        ROOT / "docs" / "speed.md",
        ROOT / "docs" / "speed.svg",
    ]
    main(*(given + usual[len(given) :]))
