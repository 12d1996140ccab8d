"""`fedrows deploy status` and `nodes`: how the runs and the nodes of a SuperLink stand."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedrows.cli.deploy_typed import add_connection, connect
from fedrows.cli.flags import Parser, whole_number_or_none
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError
from fedrows.files.whole import Json
from fedrows.flower.launch.control import AdmittedNode, ControlClient, RunState
from fedrows.flower.launch.following import in_words, span


def status(words: Sequence[str]) -> int:
    parser = Parser("deploy status", "Shows the runs of a SuperLink, its nodes and its troubles.")
    parser.add_argument("run", metavar="RUN", nargs="?", help="One run (the last 20).")
    add_connection(parser)
    parser.add_argument("--json", action="store_true", help="As JSON, for programs.")
    typed = parser.parse(words)
    named = whole_number_or_none("RUN", typed["run"], 1, 2**64)
    control = connect(typed)
    runs = [control.look(named)] if named is not None else control.runs()
    progress = {str(own.get("run")): own for own in control.progress()}
    nodes = list_nodes(control.nodes(), progress.values()) if named is None else []
    if typed["json"]:
        known = [{**progress.get(str(run.run), {}), **_facts(run)} for run in runs]
        trouble = control.heard.notice
        say(
            json.dumps(
                {"superlink": control.address, "runs": known, "nodes": nodes, "trouble": trouble}
            )
        )
        return 0
    for run in runs:
        _say_run(run, progress.get(str(run.run)))
    if not runs:
        say("No run was submitted.")
    if named is None:
        _say_nodes(nodes)
    if control.heard.notice:
        say(f"Trouble: {control.heard.notice}")
    return 0


def nodes(words: Sequence[str]) -> int:
    parser = Parser("deploy nodes", "Shows the nodes of a SuperLink: who is there, who answers.")
    add_connection(parser)
    parser.add_argument("--json", action="store_true", help="As JSON, for programs.")
    typed = parser.parse(words)
    control = connect(typed)
    listed = list_nodes(control.nodes(), control.progress())
    if typed["json"]:
        say(json.dumps({"superlink": control.address, "nodes": listed}))
    else:
        _say_nodes(listed)
    return 0


def list_nodes(admitted: Sequence[AdmittedNode], progress: Any) -> list[Json]:
    """Every node, with what the newest run that knows it says of it."""
    by_address: dict[str, Json] = {}
    for run in reversed(list(progress)):
        for name, node in run.get("nodes", {}).items():
            by_address[node["address"]] = {"in_run": run["run"], "called": name, **node}
        for address, why in run.get("turned_away", {}).items():
            by_address[address] = {"in_run": run["run"], "turned_away": why}
    listed = []
    for one in admitted:
        known = by_address.get(str(one.node), {})
        listed.append(
            {
                "node": str(one.node),
                "name": one.name or known.get("called", ""),
                "status": one.status,
                "answered": known.get("answered", 0),
                "last_answer": known.get("last_answer"),
                "away": known.get("away"),
                "why": known.get("why") or known.get("turned_away", ""),
                "refused": known.get("refused", {}),
                "in_run": known.get("in_run"),
            }
        )
    return sorted(listed, key=lambda one: (str(one["name"]), str(one["node"])))


def find_node(control: ControlClient, text: str) -> AdmittedNode:
    """The node of a name or an id; an error if there is none, or if two have the name."""
    admitted = control.nodes()
    called = {str(node["node"]): node["name"] for node in list_nodes(admitted, control.progress())}
    # Ids come first, then operators' names: what nodes call themselves hides none of these.
    nodes = [x for x in admitted if text == str(x.node)]
    nodes = nodes or [x for x in admitted if text == x.name]
    nodes = nodes or [x for x in admitted if text == called[str(x.node)]]
    if not nodes:
        raise UnknownNameError("node", text, [name for name in called.values() if name])
    if len(nodes) > 1:
        ids = ", ".join(str(node.node) for node in nodes)
        raise FedrowsError(f"Several nodes are called {text}: name one by its id, of {ids}.")
    return nodes[0]


def _facts(run: RunState) -> Json:
    """What Flower says of a run; its own account has more."""
    facts = {"details": run.details, "submitted": run.began, "ended": run.ended}
    return {"run": str(run.run), "flower_status": run.status, **facts}


def _say_run(run: RunState, progress: Mapping[str, Any] | None) -> None:
    times = " ".join(
        f"{word} {when[:19].replace('T', ' ')}"
        for word, when in (("since", run.began), ("until", run.ended))
        if when
    )
    say(f"run {run.run}  {run.status:18}  {times}".rstrip())
    if run.details:
        say(f"    {run.details}")
    if not progress or "rounds" not in progress:
        return
    about = f"{progress.get('task')}, {progress.get('algorithm')}, in {progress.get('folder')}"
    parts = [f"round {progress['round']} of {progress['rounds']}"]
    if progress.get("status") == "stopped":
        parts.append("stopped")
    if (rate := progress.get("rate")) and not run.over:
        parts.append(f"{rate:.3g} rounds/s")
    if (left := progress.get("left")) and not run.over:
        parts.append(f"about {span(left)} left")
    say(f"    {'  '.join(parts)}  {about}")
    if (recent := progress.get("recent")) and not run.over:
        say(f"    last: {in_words(recent[-1], progress['rounds'])}")
    if (buffer := progress.get("buffer")) and not run.over:
        at_work = ", ".join(f"{name} {count}" for name, count in buffer["under_way"].items())
        say(
            f"    buffer: {buffer['waiting']} of {buffer['wanted']} updates have come in; under "
            f"way: {at_work or 'nobody'}"
        )
    event = progress.get("last_event") or {}
    if event and not run.over:
        say(f"    last event: {event.get('event')}, {span(time.time() - event['time'])} ago")
    if progress.get("waiting") and not run.over:
        say(f"    {progress['waiting']}")


def _say_nodes(listed: Sequence[Json]) -> None:
    for node in listed:
        say(_node_line(node))
    if not listed:
        say("No node is admitted.")


def _node_line(node: Json) -> str:
    parts = [f"node {node['node']}", f"{node['status']:10}", node["name"]]
    if node["last_answer"] is not None:
        parts.append(f"last answer {span(time.time() - node['last_answer'])} ago")
    elif node["in_run"]:
        parts.append("no answer yet")
    if node["why"]:
        away = f"away for {span(node['away'])}" if node["away"] is not None else "takes no part"
        parts.append(f"{away} ({node['why']})")
    if node["refused"]:
        refused = ", ".join(f"{count} × {why}" for why, count in node["refused"].items())
        parts.append(f"refused: {refused}")
    return "  ".join(parts).rstrip()
