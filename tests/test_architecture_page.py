"""docs/architecture.md: its map is drawn from the code, and its walks happen in that order."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import make_architecture
import pytest
import torch
from deployed import CONFIG, examples, shards_of, task_of
from private_runs import COHORT, run, synthetic
from walks import A_PAGE, PAGE, ROOT, Step, called, defined, first_missing, on_a_gpu, steps, walks

from fedrows.flower import apps
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.privacy.options import Privacy
from fedrows.runs.driver import InMemory, drive


def test_the_map_is_drawn_from_the_code(tmp_path: Path) -> None:
    page = tmp_path / "architecture.md"
    shutil.copy(PAGE, page)
    make_architecture.main(page)
    same = page.read_text("utf-8") == PAGE.read_text("utf-8")
    assert same, "run python docs/make_architecture.py"


def test_every_file_is_listed() -> None:
    same = make_architecture.LIST.read_text("utf-8") == make_architecture.listed()
    assert same, "run python docs/make_architecture.py"


def test_a_page_without_its_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "architecture.md"
    page.write_text("# Architecture\n")
    with pytest.raises(SystemExit, match="put both lines back"):
        make_architecture.main(page)
    assert page.read_text() == "# Architecture\n"


def test_there_are_four_walks_and_each_fits_on_a_page() -> None:
    assert [title.split()[-1] for title in walks()] == ["round", "round", "round", "GPU"]
    for title, text in walks().items():
        assert len(text.strip().splitlines()) <= A_PAGE, title


@pytest.mark.parametrize("title", walks())
def test_every_step_names_a_function_of_a_file(title: str) -> None:
    named = steps(walks()[title])
    assert len(named) >= 8
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name in defined(ROOT / file), f"{file} has no {name}"


@pytest.mark.parametrize("title", walks())
def test_every_method_that_is_named_beside_the_steps_exists(title: str) -> None:
    text = walks()[title]
    files = set(re.findall(r"`(fedrows/[\w/]+\.py)`", text))
    methods = {name for file in files for name in defined(ROOT / file)}
    assert set(re.findall(r"`([A-Z_]\w*\.\w+)`", text)) - methods == set()


def test_every_file_that_is_named_exists() -> None:
    pages = PAGE.read_text("utf-8") + (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`((?:fedrows|docs|tests)/[\w/]+\.\w+)`", pages)
    assert [file for file in named if not (ROOT / file).is_file()] == []


def test_a_simulated_round_goes_as_it_is_written() -> None:
    simulation = run(synthetic(), rounds=1, chunk=COHORT)
    events = called(lambda: drive(simulation, InMemory()))
    assert first_missing(steps(walks()["A simulated round"]), iter(events)) is None


def test_a_private_round_goes_as_it_is_written() -> None:
    rounds = iter(run(synthetic(), Privacy.of("index"), chunk=COHORT))
    events = called(lambda: next(rounds))
    assert first_missing(steps(walks()["A private round"]), iter(events)) is None


class Grid:
    """Flower's part: it knows the nodes, carries messages to them and answers back."""

    def __init__(self, task: DeployedTask, config: dict[str, Any], folder: Path) -> None:
        self.task, self.config, self.folder = task, config, folder
        self.names = ["n0", "n1", "n2"]
        self.replies: list[Any] = []

    def get_node_ids(self) -> range:
        return range(len(self.names))

    def push_messages(self, messages: list[Any]) -> list[str]:
        return [self._answered(message) for message in messages]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        return [self.replies[int(id_)] for id_ in ids]

    def _answered(self, message: Any) -> str:
        name = self.names[message.node]
        node = {"name": name}
        state, content = NodeState(self.folder / name), apps._content(message)
        answer = apps.answer(self.task, self.config, node, state, content)
        id_ = str(len(self.replies))
        about = SimpleNamespace(reply_to_message_id=id_)
        content = {apps.RECORD: {apps.FIELD: answer}}
        reply = SimpleNamespace(metadata=about, has_error=lambda: False, content=content)
        self.replies.append(reply)
        return id_


def deployed(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Callable[[], Any]:
    """A deployed run of one round whose nodes are in this process."""

    def message(content: Any, dst_node_id: int, **_: Any) -> Any:
        return SimpleNamespace(content=content, node=dst_node_id)

    monkeypatch.setattr(apps, "Message", message)  # Flower's own wants a run of Flower's
    data, config = examples(), {**CONFIG, "rounds": 1, **more}
    shards = shards_of(data)
    task = replace(task_of(data), shard=lambda config: shards[config["name"]])
    grid: Any = Grid(task, config, folder)

    def work() -> None:
        transport = apps.GridTransport(grid)
        deployment = Deployment(make_contract(task, config), transport, config, lambda text: None)
        with Journal.opened(folder / "out", deployment) as journal:
            drive(deployment, journal)

    return work


def test_a_deployed_round_goes_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = called(deployed(tmp_path, monkeypatch))
    assert first_missing(steps(walks()["A deployed round"]), iter(events)) is None


@pytest.mark.gpu
def test_a_round_on_a_gpu_goes_as_it_is_written() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    assert first_missing(steps(walks()["A round on a GPU"]), iter(on_a_gpu())) is None


def test_the_tracer_sees_order() -> None:
    a, b = Step("fedrows/a.py", "f"), Step("fedrows/b.py", "g")
    assert first_missing([a, b], iter([b, a, b])) is None
    assert first_missing([b, a, b], iter([a, b, a])) == b
