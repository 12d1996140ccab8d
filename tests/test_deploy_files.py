"""The files of deploy/: each is read by its own linter, and names what we really have."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrows.cli.deploy import ACTIONS
from fedrows.measure.summary import METRICS
from fedrows.watch.writers.prometheus import METERS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "fedrows"
BESIDE = Path(sys.executable).parent
FILLED = {"FEDROWS_APPS": "0" * 64, "FEDROWS_SHARD": "/srv/shard"}


def lint(*command: str | Path, **more: str) -> str:
    """What a linter says; the test fails if that is a complaint."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={**os.environ, **more},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def exported() -> set[str]:
    """Every name that a scrape has."""
    names = set()
    for name, (kind, *_) in METERS.items():
        ends = ("_bucket", "_sum", "_count") if kind == "Histogram" else ("",)
        names |= {f"fedrows_{name}{end}" for end in ends}
    return names


@pytest.mark.parametrize("name", ["grafana/fedrows.json", "grafana/alerts.yaml"])
def test_dashboards_and_alerts_ask_for_metrics_that_we_export(name: str) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    asked = set(re.findall(r"\bfedrows_[a-z_]+", text))
    assert asked
    assert asked <= exported()


def test_every_metric_is_on_the_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    named = set(re.findall(r"`fedrows_([a-z_]+)`", page))
    assert set(METERS) - set(METRICS) <= named <= set(METERS)


def test_the_dashboard_is_whole() -> None:
    board = json.loads((DEPLOY / "grafana" / "fedrows.json").read_text("utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert all(target["expr"] for target in panel["targets"])
    boxes = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(boxes)) == len(boxes)


def test_the_dockerfile_passes_hadolint() -> None:
    lint(BESIDE / "hadolint", DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert "USER 10001" in text


def compose() -> dict[str, Any]:
    command = [BESIDE / "docker-compose", "-f", DEPLOY / "compose.yaml", "--profile", "operator"]
    found: dict[str, Any] = json.loads(lint(*command, "config", "--format", "json", **FILLED))
    return found


def test_compose_reads_its_file_and_nothing_runs_as_root_or_open() -> None:
    services = compose()["services"]
    assert set(services) == {"superlink", "north", "admit", "run"}
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        words = service["command"]
        assert words[0] == "deploy"
        assert words[1] in ACTIONS
        assert "--insecure" not in words
        assert "--control-from" not in words
    published = [name for name, one in services.items() if one.get("ports")]
    assert published == ["superlink"]


def rendered(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """What the chart makes, by the engine of Go's templates, which is Helm's too."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    for role, settings in changes.items():
        values[role] |= settings
    given = folder / "values.yaml"
    given.write_text(yaml.safe_dump({"Values": values, "Release": {"Name": "demo"}}))
    made: list[dict[str, Any]] = []
    render = "import sys, go_template; go_template.render_template(*sys.argv[1:])"
    for template in sorted((CHART / "templates").glob("*.yaml")):
        out = folder / template.name
        lint(sys.executable, "-c", render, template, given, out)
        if documents := [one for one in yaml.safe_load_all(out.read_text("utf-8")) if one]:
            lint(BESIDE / "kubernetes-validate", "--strict", out)
            made += documents
    return made


def test_the_chart_makes_three_roles(tmp_path: Path) -> None:
    more = {"enabled": True, "extraArgs": ["--config", 'a="b c"']}
    made = rendered(
        tmp_path,
        superlink={"controlFrom": "10.0.0.0/8"},
        node={**more, "apps": "0" * 64},
        run=more,
    )
    kinds = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert kinds == [
        ("StatefulSet", "demo-node"),
        ("Job", "demo-run"),
        ("Service", "demo-superlink"),
        ("StatefulSet", "demo-superlink"),
    ]
    for one in made:
        if one["kind"] == "Service":
            continue
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        (container,) = pod["containers"]
        words = container["args"]
        assert (words[0], words[1] in ACTIONS) == ("deploy", True)
        assert "--insecure" not in words
        assert container["securityContext"]["readOnlyRootFilesystem"]
        if one["kind"] != "StatefulSet" or "node" in one["metadata"]["name"]:
            assert words[-2:] == ["--config", 'a="b c"']
    assert "10.0.0.0/8" in made[-1]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_chart_makes_a_superlink_alone_by_default(tmp_path: Path) -> None:
    assert [one["kind"] for one in rendered(tmp_path)] == ["Service", "StatefulSet"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["apiVersion"], chart["name"]) == ("v2", "fedrows")


def test_yaml_is_tidy() -> None:
    rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"
    files = [path for path in DEPLOY.rglob("*.yaml") if path.parent.name != "templates"]
    assert len(files) == 4
    lint(BESIDE / "yamllint", "--strict", "-d", rules, *files)


def test_systemd_reads_its_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    assert len(units) == 3
    for unit in units:  # the program need not be installed here, all else must be right
        text = unit.read_text("utf-8")
        command = re.search(r"^ExecStart=(\S+) deploy (\w+) ", text, re.M)
        assert command is not None
        assert command[2] in ACTIONS
        (tmp_path / unit.name).write_text(text.replace(command[1], "/bin/true"))
    said = lint(analyze, "verify", *sorted(tmp_path.glob("*.service")))
    assert not [line for line in said.splitlines() if "fedrows" in line], said


def test_the_page_shows_the_same_units() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    shown = dict(re.findall(r"```ini\n# /etc/systemd/system/(\S+)\n(.*?)```", page, re.S))
    assert shown == {x.name: x.read_text("utf-8") for x in (DEPLOY / "systemd").iterdir()}


def test_systemd_finds_a_wrong_line(tmp_path: Path) -> None:
    """The check above can fail."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "fedrows-wrong.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nRestrat=always\n")
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert "Restrat" in done.stderr


COMMANDS = ("flwr ", "flower-superlink", "flower-supernode", "flower-simulation")


def test_no_page_has_a_user_type_flowers_own_commands() -> None:
    """They start a local SuperLink without TLS that may install packages, or know no token."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")]
    typed = [
        f"{page.name}: {line}"
        for page in pages
        for block in re.findall(
            r"```(?:bash|console|ini|sh)\n(.*?)```", page.read_text("utf-8"), re.S
        )
        for line in block.splitlines()
        if any(re.search(rf"(^|[\s/]){re.escape(word)}", line) for word in COMMANDS)
    ]
    assert not typed
