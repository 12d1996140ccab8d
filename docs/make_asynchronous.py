"""Writes the tables of docs/asynchronous-results.md and draws its picture, from benchmarks/results.

    python docs/make_asynchronous.py

Reads asynchronous.json (time to a target) and async_cost.json (what simulating it takes). Only what
stands between the markers of the page is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from asynchronous_cases import (
    NEVER,
    RULES,
    TASKS,
    Case,
    cases,
    fastest,
    fresh,
    number,
    same_rate,
)
from draw_asynchronous import CLOCKS, Json, measured
from page_parts import filled, table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = Path(__file__).with_name("asynchronous-results.md")


def settings(results: Json) -> str:
    """What was run, task by task."""
    lines = []
    for task in TASKS:
        if x := results.get(task):
            seeds = min(len(runs) for runs in x["clocks"].values())
            lines.append(
                f"- `{task}`, {seeds} seeds: {x['clients']:,} clients, "
                f"K = {x['clients_per_round']}, {x['rounds']} rounds, M = {x['buffer']}; "
                f"{x['why']}. {_measured(task, x['machines'])}"
            )
    return "\n".join(lines) + "\n"


def _measured(task: str, machines: Mapping[str, Json]) -> str:
    """The command, and what each kind of devices was measured on."""
    clocks: dict[str, list[str]] = {}
    for clock in (x for x in CLOCKS if x in machines):
        clocks.setdefault(_machine(machines[clock]), []).append(clock)
    command = f"`python benchmarks/asynchronous.py {task}`"
    if len(clocks) == 1:
        return f"{command}, {next(iter(clocks))}."
    each = (f"{' and '.join(names)} on {machine}" for machine, names in clocks.items())
    return f"{command}; {'; '.join(each)}."


def _machine(part: Json) -> str:
    return f"{part['cpu']}, PyTorch {part['torch']}, {part['date'][:10]}"


def _where(part: Json) -> str:
    return f"`{part['command']}`, {_machine(part)}."


def gains(results: Json) -> str:
    """Virtual time to the target."""
    head = ["task", "devices", "C / M", "synchronous, s", "of M clients, s",
            *(f"`{rule}`" for rule in RULES)]  # fmt: skip
    rows = []
    for case in cases(results):
        small = case.smaller()
        rows.append([
            f"`{case.task}`", case.clock, case.name, shown(case.waited()),
            shown(small) if small else "–",
            *(_sooner(case, rule) for rule in RULES),
        ])  # fmt: skip
    return table(head, rows, words=3)


def _sooner(case: Case, rule: str) -> str:
    if rule not in case.rules:
        return "–"
    missed = sum(x == NEVER for x in case.seconds(rule))
    if missed:
        return f"not reached ({missed} of {len(case.runs)})"
    return f"{case.ratio(rule):.1f} ×"


def shown(values: Sequence[float]) -> str:
    """The mean of some times; how many did not get there."""
    there = [x for x in values if x != NEVER]
    if len(there) < len(values):
        return f"not reached ({len(values) - len(there)} of {len(values)})"
    return f"{fmean(there):,.0f}"


def quality(results: Json) -> str:
    """The least losses."""
    head = ["task", "devices", "C / M", "synchronous", "range of its seeds",
            *(f"`{rule}`" for rule in RULES)]  # fmt: skip
    rows = []
    for case in cases(results):
        base = case.base()
        ends = (
            f"{fmean(case.best(rule)) - fmean(base):+.4f}" if rule in case.rules else "–"
            for rule in RULES
        )
        rows.append([f"`{case.task}`", case.clock, case.name, f"{fmean(base):.4f}",
                     f"{max(base) - min(base):.4f}", *ends])  # fmt: skip
    return table(head, rows, words=3)


def goals(results: Json, cost: Json) -> str:
    """The goals, what was measured, and whether each is reached."""
    every = list(cases(results))
    heavy = [x for x in every if x.clock == "heavy-tail"]
    rows = []
    for task in dict.fromkeys(x.task for x in heavy):
        goal = f"≥ 3 × sooner at the heavy tail, by a run that ends as well, `{task}`"
        best = fastest(x for x in heavy if x.task == task)
        if best is None:
            rows.append([goal, "none ends as well", _yes(False)])
        else:
            rows.append([goal, _sooner(best, "row"), _yes(best.ratio("row") >= 3)])
    for case, seeds in same_rates(results):
        rows.append([f"the same, `amazon`, M = K, the rate of the synchronous run{seeds}",
                     _sooner(case, "row"),
                     _yes(case.ratio("row") >= 3 and case.ends_well)])  # fmt: skip
    for case in heavy:
        rows.append([f"least loss worse by at most the range of seeds, `{case.task}`, C / M = "
                     f"{case.name}", f"{case.worse:+.4f} against {case.spread:.4f}",
                     _yes(case.ends_well)])  # fmt: skip
    good = [x for x in every if fmean(x.best("row")) <= fmean(x.best("version"))]
    rows.append(["least loss with `row` at most that with `version`",
                 f"{len(good)} of {len(every)} cases", _yes(len(good) == len(every))])  # fmt: skip
    either = [x for x in every if min(x.seconds("row") + x.seconds("version")) < NEVER]
    sooner = [x for x in either if fmean(x.seconds("row")) <= fmean(x.seconds("version"))]
    rows.append(["time with `row` at most that with `version`, where any seed reached the target",
                 f"{len(sooner)} of {len(either)} cases",
                 _yes(len(sooner) == len(either))])  # fmt: skip
    for goal in cost.get("goals", ()):
        rows.append([goal["what"], f"{goal['value']:.2f}, at most {goal['at_most']:g}",
                     _yes(goal["met"])])  # fmt: skip
    return table(["goal", "measured", "reached"], rows)


def same_rates(results: Json) -> list[tuple[Case, str]]:
    """The cases with M = K and the synchronous rate, and which seeds they have."""
    if "buffers" not in results:
        return []
    seeds = f", seeds {_numbers(results['buffers']['fresh']['seeds'])}"
    return [(same_rate(results), ""), (fresh(results), seeds)]


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def rates(results: Json) -> str:
    """The learning rates that were chosen, and those to choose from."""
    kinds = ("waiting", *RULES)
    head = ["task", "devices", "rates", "synchronous", *(f"`{rule}`" for rule in RULES)]
    rows = []
    for task in TASKS:
        part = results.get(task, {"rates": {}})
        for clock in (x for x in CLOCKS if x in part["rates"]):
            usual, chosen = part["lr"], part["rates"][clock]
            tried = (x.split(", ")[0] for x in part["searched"][clock]["waiting"])
            among = [f"{usual * float(x):g}" for x in dict.fromkeys(tried)]
            schedules = part["schedules"][clock]
            cells = (f"{usual * chosen[x]:g}{_falling(schedules[x])}" for x in kinds)
            rows.append([f"`{task}`", clock, ", ".join(among), *cells])
    if large := results.get("buffers"):
        part = results["amazon"]
        usual, waiting = part["lr"], part["rates"]["heavy-tail"]["waiting"]
        among = (f"{usual * float(x.split(', ')[0]):g}" for x in large["searched"]["row"])
        cells = (f"{usual * x:g}, cosine" for x in (waiting, *large["rates"].values()))
        rows.append(["`amazon`", "heavy-tail, M = K", ", ".join(among), *cells, "–"])
    return table(head, rows, words=3)


def _falling(schedule: str) -> str:
    return "" if schedule == "constant" else f", {schedule}"


def buffers(results: Json) -> str:
    """Buffers as large as a cohort: at equal concurrency, with the synchronous rate, once more."""
    large = results["buffers"]
    (case,) = (x for x in cases(results) if x.whole)
    waited = [number(x["waiting"]["seconds"]) for x in large["runs"]]
    clients = large["times"] * large["buffer"]
    return (
        f"- With M = K, {clients:,} clients train at a time. A synchronous run that asks as many "
        f"and takes the first {large['buffer']} reaches the target in {fmean(waited):.1f} s, and "
        f"`row` in {fmean(case.seconds('row')):.1f} s.\n"
        f"- With the rate of the synchronous run, {_against(same_rate(results))}.\n"
        f"- The same with fresh seeds, {_numbers(large['fresh']['seeds'])}: "
        f"{_against(fresh(results))}.\n\n{_where(large)}\n"
    )


def _against(case: Case) -> str:
    return (
        f"`row` needs {fmean(case.seconds('row')):.1f} s and synchronous rounds "
        f"{fmean(case.waited()):.1f} s, {case.ratio('row'):.1f} × as long; the least loss of `row` "
        f"is {case.worse:+.4f} from theirs, whose seeds range over {case.spread:.4f}"
    )


def _numbers(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def distance(results: Json) -> str:
    """A row's staleness by how often, or how far, it moved."""
    head = ["task", "how often: s", "loss", "how far: s", "loss"]
    rows = []
    for task, runs in results["distance"]["tasks"].items():
        cells = [f"`{task}`"]
        for name in ("often", "far"):
            cells.append(shown([number(x[name]["seconds"]) for x in runs]))
            cells.append(f"{fmean(x[name]['best'] for x in runs):.4f}")
        rows.append(cells)
    return table(head, rows, words=3)


def costs(cost: Json) -> str:
    """What an update costs, asynchronous and synchronous."""
    head = ["task", "M = K", "synchronous, µs an update", "asynchronous, µs", "ratio"]
    rows = [
        [f"`{task}`", size, f"{x['sync']:,.0f}", f"{x['async']:,.0f}", f"{x['ratio']:.2f}"]
        for task, sizes in cost["tasks"].items()
        for size, x in sizes.items()
    ]
    start = cost["million"]
    last = (
        f"Starting a federation of {start['clients']:,} clients with a clock takes "
        f"{start['seconds']:.0f} s and {start['peak_bytes'] / 2**30:.1f} GiB of memory, including "
        f"its data and the first step. With Python's imports it is {start['processor']:.0f} s of "
        "processor time."
    )
    return f"{table(head, rows, words=3)}\n{last} {_where(cost)}\n"


def parts(results: Json, cost: Json) -> Mapping[str, str]:
    """What stands between each pair of markers."""
    return {
        "settings": settings(results),
        "gains": gains(results),
        "quality": quality(results),
        "goals": goals(results, cost),
        "rates": rates(results),
        "buffers": buffers(results),
        "distance": distance(results),
        "costs": costs(cost),
    }


def written(text: str, results: Json, cost: Json) -> str:
    """The page with its measured parts made anew."""
    own = {name: f"\n{part}\n" for name, part in parts(results, cost).items()}
    return filled(PAGE, text, own)


def read() -> tuple[Json, Json]:
    """What was measured."""
    names = ("asynchronous", "async_cost")
    results, cost = (json.loads((RESULTS / f"{x}.json").read_text("utf-8")) for x in names)
    return results, cost


def picture(results: Json) -> str:
    """The picture of the page."""
    return "\n".join(measured(results)) + "\n"


if __name__ == "__main__":
    found = read()
    PAGE.write_text(written(PAGE.read_text("utf-8"), *found), "utf-8")
    PAGE.with_suffix(".svg").write_text(picture(found[0]), "utf-8")
