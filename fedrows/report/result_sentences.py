"""What happened, in plain words: sentences that are true whoever won, and whatever was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrows.catalogue import BASELINE, DEFAULT, REFERENCE
from fedrows.measure.metric_choice import about, chooses
from fedrows.measure.summary import Summary, display, number, show_bytes, show_number

Summarised = dict[str, Any]


def headline(summary: Summary) -> str:
    """The one sentence that heads the page."""
    runs = {a["name"]: a for a in summary["algorithms"]}
    federated = [a for a in summary["algorithms"] if a["name"] != REFERENCE]
    pair = [runs[name] for name in (DEFAULT, BASELINE) if name in runs]
    if summary["target"]["rule"] and federated:
        return _to_target(pair if len(pair) == 2 else federated, goal(summary))
    runs_shown = pair if len(pair) == 2 else summary["algorithms"]
    return _best(runs_shown, summary["chosen_on_validation"])


def lede(summary: Summary, cold_to_hot: Sequence[tuple[str, dict[str, float]]]) -> list[str]:
    """The sentences after it: who else was quick, cold and hot features, bytes, seeds.

    `cold_to_hot`: for each heat bucket its label and the final test loss by algorithm.
    """
    runs = {a["name"]: a for a in summary["algorithms"]}
    sentences = [_quicker(summary, runs), _cold(cold_to_hot), _bytes(summary, runs)]
    seeds = {len(a["seeds"]) for a in summary["algorithms"]}
    if max(seeds) > 1:
        count = str(max(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        sentences.append(f"Numbers are means over {count} seeds.")
    return [sentence for sentence in sentences if sentence]


def goal(summary: Summary) -> str:
    """The target in words: 'CentralSGD’s best train loss (0.612)' or 'a train loss of 0.612'."""
    target = summary["target"]
    metric, value = about(target["metric"])[0], show_number(target["over_seeds"]["mean"])
    if target["rule"] == "given":
        return f"a {metric} of {value}"
    within = f" of its first {target['rounds']} rounds" if target["rounds"] else ""
    return f"{display(REFERENCE)}’s best {metric}{within} ({value})"


def order(algorithm: Summarised) -> tuple[float, float]:
    """Sorts by share of seeds that reached the target, then by their mean rounds."""
    values = algorithm["rounds_to_target"]["values"]
    mean = algorithm["rounds_to_target"]["mean"]
    return -_reached(algorithm) / max(1, len(values)), mean if mean is not None else 0.0


def _to_target(runs: Sequence[Summarised], what: str) -> str:
    ranked = sorted(runs, key=order)
    first, rest = ranked[0], ranked[1:]
    if not _reached(first):
        if len(runs) == 1:
            return f"{_name(first)} did not reach {what} within {first['rounds']} rounds."
        if len(runs) == 2:
            who = f"Neither {_name(runs[0])} nor {_name(runs[1])}"
        else:
            who = f"None of the {len(runs)} federated algorithms"
        return f"{who} reached {what} within {max(a['rounds'] for a in runs)} rounds."
    sentence = f"{_name(first)} reached {what} {_in_rounds(first)}"
    if not rest:
        return sentence + "."
    if len(rest) > 1:
        behind = [a for a in rest if _reached(a)]
        if not behind:
            return f"{sentence}; none of the {len(rest)} others did."
        ties = [_name(a) for a in behind if order(a) == order(first)]
        if ties:
            return f"{sentence}, and so did {_list(ties)}."
        mean = first["rounds_to_target"]["mean"]
        ahead = all(a["rounds_to_target"]["mean"] > mean for a in behind)
        lead = ", ahead of all others" if ahead else ""
        return f"{sentence}{lead}; {len(behind)} of the {len(rest)} others reached it too."
    second = rest[0]
    if not _reached(second):
        return f"{sentence}; {_name(second)} did not within {second['rounds']}."
    if not (_always(first) and _always(second)):
        return f"{sentence}, {_name(second)} {_in_rounds(second)}."
    fast, slow = (a["rounds_to_target"]["mean"] for a in (first, second))
    if slow == fast:
        return f"{_name(first)} and {_name(second)} both reached {what} {_in_rounds(first)}."
    fewer = f"{slow / fast:.1f}× fewer" if fast > 0 and slow / fast >= 1.05 else "about as many"
    return f"{sentence}, {_name(second)} in {slow:.0f}: {fewer}."


def _best(runs: Sequence[Summarised], chosen: Sequence[str]) -> str:
    """Without a target: who got the best value of the first metric that all have.

    chosen: the metrics whose round was chosen on validation examples.
    """
    for metric in ("test_loss", "test_auc", "test_accuracy", "test_gauc", "train_loss"):
        title, higher, _ = about(metric)
        best = {
            a["name"]: a["metrics"][metric]["best"]["mean"] for a in runs if metric in a["metrics"]
        }
        if len(best) < len(runs) or any(v is None for v in best.values()):
            continue
        where = f" at its best {about(chooses(metric))[0]}" if metric in chosen else ""
        result = f"a {title}" if where else f"a best {title}"
        rounds = max(a["rounds"] for a in runs)
        ranked = sorted(best.items(), key=lambda item: -item[1] if higher else item[1])
        (name, value), rest = ranked[0], ranked[1:]
        came = f"{display(name)} came to {result} of {show_number(value)}"
        sentence = f"{came}{where} within {rounds} rounds"
        if not rest:
            return sentence + "."
        if rest[0][1] == value:
            return f"{sentence}, and so did {display(rest[0][0])}."
        if len(rest) == 1:
            return f"{sentence}, {display(rest[0][0])} to {show_number(rest[0][1])}."
        return f"{sentence}, ahead of {display(rest[0][0])} ({show_number(rest[0][1])})."
    return f"{_list([_name(a) for a in runs])}, run for {max(a['rounds'] for a in runs)} rounds."


def _quicker(summary: Summary, runs: dict[str, Summarised]) -> str:
    """Names whoever beat both FedSubAvg and FedAvg, which the headline compares."""
    if not summary["target"]["rule"] or not {DEFAULT, BASELINE} <= runs.keys():
        return ""
    bar = min(order(runs[DEFAULT]), order(runs[BASELINE]))
    quicker = sorted((a for a in runs.values() if _always(a) and order(a) < bar), key=order)
    quicker = [a for a in quicker if a["name"] not in (REFERENCE, DEFAULT, BASELINE)]
    if not quicker:
        return ""
    return f"Quickest was {_name(quicker[0])}, {_in_rounds(quicker[0])}."


def _cold(cold_to_hot: Sequence[tuple[str, dict[str, float]]]) -> str:
    both = [(label, v) for label, v in cold_to_hot if {DEFAULT, BASELINE} <= v.keys()]
    if not both:
        return ""
    label, cold = both[0]
    sentence = (
        f"On test examples whose target feature is held by {label}, the final loss is "
        f"{show_number(cold[DEFAULT])} with {display(DEFAULT)} "
        f"and {show_number(cold[BASELINE])} with {display(BASELINE)}"
    )
    if len(both) > 1:
        label, hot = both[-1]
        sentence += (
            f"; where {label} hold it, {show_number(hot[DEFAULT])} and {show_number(hot[BASELINE])}"
        )
    return sentence + "."


def _bytes(summary: Summary, runs: dict[str, Summarised]) -> str:
    chosen = runs.get(DEFAULT) or next((a for a in runs.values() if a["down_share"]), None)
    if chosen is None or not chosen["down_share"] or chosen["name"] == REFERENCE:
        return ""
    return (
        f"With {_name(chosen)} a client downloads {show_bytes(chosen['bytes_down'])} a round, "
        f"{show_number(100 * chosen['down_share'])} % of the full model’s "
        f"{show_bytes(number(summary['bytes_full_model']))}."
    )


def _name(algorithm: Summarised) -> str:
    return display(algorithm["name"])


def _reached(algorithm: Summarised) -> int:
    return sum(v is not None for v in algorithm["rounds_to_target"]["values"])


def _always(algorithm: Summarised) -> bool:
    return 0 < _reached(algorithm) == len(algorithm["rounds_to_target"]["values"])


def _in_rounds(algorithm: Summarised) -> str:
    values = algorithm["rounds_to_target"]["values"]
    mean = f"{algorithm['rounds_to_target']['mean']:.0f}"
    rounds = f"in {mean} round" if mean == "1" else f"in {mean} rounds"
    if _always(algorithm):
        return rounds
    return f"{rounds} in {_reached(algorithm)} of {len(values)} seeds"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
