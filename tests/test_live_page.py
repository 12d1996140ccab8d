"""The live page in Chromium while a run is going on, dies and comes back."""

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import browser as browser

from tests.commands import SMALL, start

RUN = ["run", "synthetic", *SMALL, "--rounds", "1000000", "--evaluate-every", "20"]


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for text in process.stdout:
        if found := re.match(r"Live page: (\S+)", text):
            # A run whose output nobody reads waits, and then hears no signal.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[1]
    raise AssertionError(process.communicate()[1])


def until(true: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def last_round(page: Any) -> int:
    text = page.locator("#facts dd").first.text_content(timeout=20_000)
    return int(text.split(" of ")[0].replace(",", ""))


@pytest.mark.slow(minutes=0.6)
def test_a_page_follows_a_run_that_dies_and_comes_back(
    tmp_path: Path,
    browser: Any,
    processes: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    def go(*words: str) -> subprocess.Popen[Any]:
        process = start(*words, out=subprocess.DEVNULL)
        processes.append(process)
        return process

    watching = start("watch", "one", "two")  # neither is there yet
    processes.append(watching)
    address = address_of(watching)
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.get_by_text("waiting for a run").first.wait_for(timeout=20_000)

    run = go(*RUN, "--out", "one", "--checkpoint-seconds", "1")
    page.locator("#panels .series path").first.wait_for(timeout=30_000)
    first = last_round(page)
    until(lambda: last_round(page) > first)
    assert page.locator("#facts").get_by_text("Rounds/s").is_visible()
    assert page.locator("#heat .series").count() > 0
    width = "[document.documentElement.scrollWidth, innerWidth]"
    assert len(set(page.evaluate(width))) == 1, "a phone scrolls sideways"
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) != dark

    run.send_signal(signal.SIGKILL)
    run.wait()
    page.locator("#notices .bad").get_by_text("Its process has ended").wait_for(timeout=15_000)
    assert "fedrows run --resume" in page.locator("#notices").text_content()
    stood = last_round(page)
    go("run", "--resume", "one")
    page.locator("#notices .bad").first.wait_for(state="detached", timeout=30_000)
    until(lambda: last_round(page) > stood)

    go("run", "synthetic", *SMALL, "--rounds", "40", "--algorithm", "fedavg", "--out", "two")
    page.locator("#rows tr").nth(1).wait_for(timeout=30_000)
    until(lambda: page.locator("#panels figure:first-child .series").count() == 2)
    page.locator("#rows button").first.click()
    until(lambda: page.locator("#panels figure:first-child .series").count() == 1)
    assert errors == []
    host = address.partition("?")[0]
    assert [url for url in asked if not url.startswith((host, "data:"))] == []


@pytest.mark.slow(minutes=0.3)
def test_live_on_a_run_serves_its_page_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = start(*RUN, "--out", "one", "--live")
    processes.append(run)
    address = address_of(run)
    assert httpx.get(address, timeout=20).status_code == 200
    with httpx.stream("GET", address.replace("/?", "/events?"), timeout=20) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: snapshot"
        run.send_signal(signal.SIGINT)  # it saves first, and tells its viewers in the end
        assert any("To see the page again" in text for text in lines)
    assert run.wait(timeout=20) == 130
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, timeout=5)
