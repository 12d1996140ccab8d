"""`fedrows deploy demo --devices`: a whole federation on this machine, looked at in Chromium."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from browser_pages import browser, dist  # noqa: F401

from fedrows.cli import main
from fedrows.flower import device_demo
from fedrows.flower.demo_devices import chosen_clients, given_to, title_of
from tests.commands import start

SMALL = ["--clients=30", "--items=40", "--examples-per-client=80", "--rounds=1000"]


def test_what_cannot_be_shown_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device_demo, "DIST", tmp_path / "dist")

    def refused(*words: str) -> str:
        assert main(["deploy", "demo", "synthetic", *SMALL, *words]) != 0
        return capsys.readouterr().err

    assert "run `make browser`" in refused("--devices", "2")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "demo.html").write_text("")
    wanted = "--devices is '0', but must be a whole number of at least 1"
    assert wanted in refused("--devices", "0")
    assert "--nodes is for a demo without" in refused("--devices", "2", "--nodes", "2")
    assert "has 30 clients only" in refused("--devices", "31")
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_a_device_gets_its_own_examples_and_candidates_nobody_trains_on() -> None:
    from fedrows import catalogue

    task = catalogue.task("synthetic")
    data = task.load(task.options(clients=60, items=50, examples_per_client=40))
    own, others = chosen_clients(data, 4)
    assert len(own.unique()) == 4
    assert sorted([*own.tolist(), *others.tolist()]) == list(range(60))
    together = data.select(torch.cat([own, others]))
    given = given_to(together, 1, "Ben", title_of(together))
    client = int(own[1])
    low, high = data.train.splits[client : client + 2].tolist()
    assert given["label"] == data.train.label[low:high].tolist()
    assert given["ids"]["features"] == data.train.ids["features"][low:high].tolist()
    low, high = data.test.splits[client : client + 2].tolist()
    tested = data.test.ids["features"][low:high]
    assert given["candidates"]["ids"]["features"] == tested.tolist()
    assert given["also"] == {"weight": tested.unique().tolist()}
    assert all(re.fullmatch(r"Item \d+", title) for title in given["titles"])


@pytest.mark.slow(minutes=1)
def test_devices_of_the_demo_train_and_recommend(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = start("deploy", "demo", "synthetic", *SMALL, "--devices", "8", "--out", "run")
    assert demo.stdout is not None
    try:
        lines = iter(demo.stdout)
        address = next(m[1] for text in lines if (m := re.match(r"Devices: (\S+)", text)))
        context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page, asked, errors = context.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        end = time.monotonic() + 150
        while not (text := page.locator("#round").text_content()).isdecimal() or int(text) < 3:
            assert demo.poll() is None
            assert time.monotonic() < end
            page.wait_for_timeout(100)
        for i in range(1, 9):
            device = page.frame(name=f"device-{i:03}")
            device.locator("#state").get_by_text("sent round").wait_for()
            assert device.locator("#top li").count() == 6
            assert device.locator("#list li").count() > 5
            assert re.fullmatch(r"[\d.]+ k?B", device.locator("#down").text_content())
            assert device.locator("#loss path").count() == 2
            assert device.locator("#trouble").is_hidden()
        tops = [page.frame(name=f"device-{i:03}").locator("#top").inner_text() for i in range(1, 9)]
        # The model has nothing of a client's own, so two devices may agree; once, two of eight did.
        assert len(set(tops)) >= 6, "devices recommend the same"
        assert page.locator("#live").get_attribute("href").startswith("http://127.0.0.1:")
        width = "[document.documentElement.scrollWidth, innerWidth]"
        assert len(set(page.evaluate(width))) == 1, "a phone scrolls sideways"
        page.get_by_role("tab", name="Ben").click()
        assert page.locator("iframe.shown").get_attribute("title") == "Ben"
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(colour)
        page.emulate_media(color_scheme="light")
        assert page.evaluate(colour) != dark
        assert errors == []
        host = address.partition("/demo.html")[0]
        assert [url for url in asked if not url.startswith((host, "data:"))] == []
        context.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
