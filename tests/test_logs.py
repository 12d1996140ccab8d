"""Structured logs: one line each, whatever is in it, and never a password."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrows.watch import logs

say = logging.getLogger("fedrows.test")


@contextmanager
def logging_to(path: Path, form: str = "json", level: str = "info") -> Iterator[None]:
    handler = logs.start(form, path, level)
    try:
        yield
    finally:
        logs.stop(handler)


def test_a_json_line_has_time_level_event_and_fields(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log"):
        say.info("round", extra={"fields": {"run": "a", "round": 3, "loss": float("nan")}})
    line = json.loads((tmp_path / "log").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {"level": "info", "event": "round", "run": "a", "round": 3, "loss": None}


def test_a_text_line_is_words_and_pairs(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", "text"):
        say.warning("round", extra={"fields": {"run": "a b", "round": 3, "loss": 0.123456789}})
    words = (tmp_path / "log").read_text().split(" ", 1)[1]
    assert words == 'warning round run="a b" round=3 loss=0.123457\n'


@given(st.text(), st.text(min_size=1), st.text())
def test_a_line_is_one_line_whatever_is_in_it(event: str, name: str, value: str) -> None:
    record = logging.LogRecord("fedrows", logging.INFO, "", 0, "%s", (event,), None)
    record.fields = {name: value}
    for formatter in (logs.TextLines(), logs.JsonLines()):
        line = formatter.format(record)
        assert "\n" not in line
        assert "\r" not in line
    assert len(logs.TextLines().format(record).splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"password": "hunter2"}, {"password": "***"}),
        ({"tls": {"private_key": "hunter2"}}, {"tls": {"private_key": "***"}}),
        ({"at": "http://me:hunter2@host/x"}, {"at": "http://***@host/x"}),
        ({"all": ["--mlflow", "https://hunter2@host"]}, {"all": ["--mlflow", "https://***@host"]}),
        ({"token": "a word", "key": 3}, {"token": "a word", "key": 3}),  # a table is called so
    ],
)
def test_secrets_stay_out(given: Any, kept: Any, tmp_path: Path) -> None:
    assert logs.without_secrets(given) == kept
    with logging_to(tmp_path / "log"):
        say.error("failed at http://me:hunter2@host", extra={"fields": given})
        try:
            raise ValueError("http://me:hunter2@host")
        except ValueError:
            say.exception("again")
    assert "hunter2" not in (tmp_path / "log").read_text()


def test_the_level_leaves_out_what_matters_less(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", "text", "warning"):
        say.info("nothing")
        say.warning("something")
    assert (tmp_path / "log").read_text().split()[1:] == ["warning", "something"]


def test_a_file_is_added_to_and_opened_anew_when_it_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(2):
        with logging_to(path, "text"):
            say.info("before")
    assert path.read_text().count("before") == 2
    with logging_to(path, "text"):
        path.rename(tmp_path / "old")
        say.info("after")
    assert "after" in path.read_text()


def test_a_disk_that_is_full_is_said_once(tmp_path: Path, capsys: Any) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs a /dev/full")
    with logging_to(full):
        say.info("one")
        say.info("two")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_nothing_is_left_when_logging_stops(tmp_path: Path) -> None:
    logger = logging.getLogger("fedrows")
    before = (logger.level, list(logger.handlers))
    with logging_to(tmp_path / "log"):
        assert logger.handlers != before[1]
    assert (logger.level, logger.handlers) == before


def test_a_log_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(logs.LogError, match=r"^--log-file .* cannot be written .*: name another"):
        logs.start("json", tmp_path / "missing" / "log")
