"""Runs as operators see them: settings arrive as typed, and a run goes on when its servers die."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from fedrows.flower.launch import control
from fedrows.flower.launch.resubmit import submit_until_done


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":8000", "host:0", "host:70000", "host:x"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(control.ControlError, match="write HOST:PORT"):
        control.split_address(address)
    assert control.split_address("[::1]:8000") == ("::1", 8000)


class Servers:
    """A SuperLink that answers as it was told to."""

    def __init__(self, *answers: tuple[str, str] | str | None) -> None:
        self.answers = list(answers)
        self.submitted = 0
        self.stopped: list[int] = []
        self.heard = control.Heard(started="1")

    def submit(self, project: Path, config: Any) -> int:
        self.submitted += 1
        return self.submitted

    def look(self, run: int) -> control.RunState:
        answer = self.answers.pop(0)
        if answer is None:
            raise control.ControlError("gone")
        if answer == FORGOTTEN:
            raise control.UnknownRunError("Run ID not found.")
        if isinstance(answer, str):  # it was started again
            self.heard.started, answer = answer, RUNNING
        return control.RunState(run, *answer)

    def stop(self, run: int) -> None:
        self.stopped.append(run)


FORGOTTEN = "forgotten"
RUNNING, DONE = ("running", ""), ("finished:completed", "")
KILLED = ("finished:failed", "The ServerApp was killed by signal 9.")


def test_a_run_is_submitted_again_when_its_servers_die() -> None:
    servers = Servers(RUNNING, KILLED, RUNNING, None, None, "2", RUNNING, DONE)
    said: list[str] = []
    assert submit_until_done(servers, Path(), {}, 5, said.append, every=0.0) == 0
    assert servers.submitted == 3
    assert servers.stopped == [2]  # the one whose SuperLink was started again
    assert said[-1] == "Run 3 has completed."


def test_a_run_goes_on_when_the_superlink_did_not_answer_for_a_while() -> None:
    servers = Servers(RUNNING, None, RUNNING, None, RUNNING, DONE)
    said: list[str] = []
    assert submit_until_done(servers, Path(), {}, 5, said.append, every=0.0) == 0
    assert (servers.submitted, servers.stopped) == (1, [])
    assert said[1] == "gone It is asked again."


def test_a_run_that_the_superlink_has_forgotten_is_submitted_again() -> None:
    servers = Servers(RUNNING, None, FORGOTTEN, RUNNING, DONE)
    said: list[str] = []
    assert submit_until_done(servers, Path(), {}, 5, said.append, every=0.0) == 0
    assert servers.submitted == 2
    assert "its database was deleted or is another one: admit the nodes again" in said[2]


def test_what_goes_wrong_is_said_while_a_run_is_waited_for() -> None:
    servers = Servers(RUNNING, RUNNING, DONE)
    servers.heard.notice = "The disk is full."
    said: list[str] = []
    assert submit_until_done(servers, Path(), {}, 5, said.append, every=0.0) == 0
    assert said == ["Run 1 is submitted.", "The disk is full.", "Run 1 has completed."]


def test_what_goes_wrong_all_the_time_is_said_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(step=4.0)  # seconds between two looks at the clock
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    servers = Servers(*[RUNNING] * 40, DONE)
    servers.heard.notice = "The disk is full."
    said: list[str] = []
    assert submit_until_done(servers, Path(), {}, 5, said.append, every=0.0) == 0
    assert 2 <= said.count("The disk is full.") <= 4


def test_a_run_is_not_tried_for_ever() -> None:
    servers = Servers(KILLED, KILLED, KILLED)
    with pytest.raises(control.ControlError, match="Run 3 broke off, and so did 2"):
        submit_until_done(servers, Path(), {}, 2, lambda _: None, every=0.0)


def test_an_app_that_raised_is_not_tried_again() -> None:
    failed = ("finished:failed", "ServerApp failed with exception: There is no task called 'x'.")
    servers = Servers(RUNNING, failed)
    with pytest.raises(control.ControlError, match="no task called 'x'"):
        submit_until_done(servers, Path(), {}, 5, lambda _: None, every=0.0)
    assert servers.submitted == 1


def test_a_stopped_run_is_over_and_ctrl_c_stops_one() -> None:
    assert (
        submit_until_done(Servers(("finished:stopped", "")), Path(), {}, 5, print, every=0.0) == 130
    )

    class Pressed(Servers):
        def look(self, run: int) -> control.RunState:
            raise KeyboardInterrupt

    servers = Pressed()
    with pytest.raises(KeyboardInterrupt):
        submit_until_done(servers, Path(), {}, 5, lambda _: None, every=0.0)
    assert servers.stopped == [1]


def test_what_a_superlink_tells_of_runs_moves_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [{"run": "1", "nodes": {"n\x1b[2J": {"why": "a\nb"}}, "rounds": 3, "recent": [None]}]
    monkeypatch.setattr(control, "ask_gate", lambda *_: {"runs": runs})
    (told,) = control.ControlClient("localhost:1").progress()
    assert told == {
        "run": "1", "nodes": {"n\ufffd[2J": {"why": "a\ufffdb"}}, "rounds": 3, "recent": [None],
    }  # fmt: skip
