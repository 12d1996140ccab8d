"""The page: what it says, what it refuses, and how it behaves in a real browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chromium import browser as browser

pytest.importorskip("jinja2", reason="needs jinja2: install fedrows")

from fedrows import report
from fedrows.errors import RunFolderError
from fedrows.measure.summary import Target, by_algorithm, summarise
from fedrows.report import axes, result_sentences
from fedrows.report.folder import read_metrics
from fedrows.report.run_charts import time_panels

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"
PAINTS = ("color", "backgroundColor")
VOID = {"meta", "img", "br", "hr", "input", "link"}


def lines_of(
    algorithm: str, losses: list[float | None], seed: int = 0, cold: float = 0.6
) -> list[dict[str, Any]]:
    return [
        {
            "algorithm": algorithm,
            "seed": seed,
            "round": 10 * i,
            "train_loss": loss,
            "test_loss": loss,
            "test_accuracy": 0.5 + 0.01 * i,
            "test_auc": None if i == 0 else 0.6,
            "test_gauc": None,
            "bytes_down": 3000,
            "bytes_up": 2000,
            "seconds": float(i),
            "buckets": [
                {"low": 1, "high": 3, "examples": 10, "loss": cold, "auc": None},
                {"low": 4, "high": 90, "examples": 50, "loss": 0.5, "auc": 0.7},
            ],
        }
        for i, loss in enumerate(losses)
    ]


def folder_of(path: Path, lines: list[dict[str, Any]], name: str = "synthetic") -> Path:
    heat = {
        "table": name,
        "group": name,
        "features": 12,
        "smallest": 1,
        "largest": 90,
        "dispersion": 90.0,
        "histogram": [[1, 8], [2, 3], [90, 1]],
    }
    config = {
        "fedrows": "0.1.0",
        "kind": "compare",
        "task": {"name": name, "option": name},
        "algorithms": [{"name": a} for a in dict.fromkeys(line["algorithm"] for line in lines)],
        "plan": {"rounds": 20, "clients_per_round": 5, "seed": 0},
    }
    data = {"clients": 100, "best_loss": 0.4, "bytes_full_model": 60_000, "heat": [heat]}
    (path / "config.json").write_text(json.dumps(config))
    (path / "data.json").write_text(json.dumps(data))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


THREE = [
    *lines_of("centralsgd", [0.69, 0.55, 0.5]),
    *lines_of("fedavg", [0.69, 0.6, 0.5], cold=0.68),
    *lines_of("fedsubavg", [0.69, 0.5, 0.45], cold=0.52),
]


class Tree(HTMLParser):
    """Fails on a tag closed out of order; collects tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_parses_and_loads_nothing(tmp_path: Path) -> None:
    path = report.write(folder_of(tmp_path, THREE))
    assert path == tmp_path / "report.html"
    text = path.read_text("utf-8")
    tree = Tree(text)
    assert not {t for t, _ in tree.tags} & {"img", "link", "iframe", "object", "embed", "use"}
    assert not [a for _, a in tree.tags if {"src", "href", "xlink:href", "style"} & a.keys()]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", text)
    policy = next(a["content"] for t, a in tree.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http:" not in policy
    charts = [a for t, a in tree.tags if t == "svg" and a.get("class") == "chart"]
    assert len(charts) == 4 + 2 + 1  # GAUC was not measured
    assert all(a["aria-label"] for a in charts)
    assert text.count("<desc>") == len(charts)


def test_nothing_is_left_beside_the_page(tmp_path: Path) -> None:
    before = {*folder_of(tmp_path, THREE).iterdir()}
    report.write(tmp_path)
    assert {*tmp_path.iterdir()} == before | {tmp_path / "report.html"}


def test_names_from_data_are_escaped_everywhere(tmp_path: Path) -> None:
    lines = [*THREE, *lines_of(ATTACK, [0.69, 0.6, 0.5])]
    text = report.write(folder_of(tmp_path, lines, name=ATTACK)).read_text("utf-8")
    assert "<img" not in text
    assert text.count("<script") == text.count("</script") == 3  # two of them are data
    Tree(text)


HEADLINES = [
    pytest.param(
        THREE,
        "FedSubAvg reached CentralSGD’s best train loss (0.500) in 10 rounds, "
        "FedAvg in 20: 2.0× fewer.",
        id="won",
    ),
    pytest.param(
        [*THREE[:3], *lines_of("fedavg", [0.5]), *lines_of("fedsubavg", [0.69, 0.6])],
        "FedAvg reached CentralSGD’s best train loss (0.500) in 0 rounds; "
        "FedSubAvg did not within 10.",
        id="lost",
    ),
    pytest.param(
        [*THREE[:3], *lines_of("fedavg", [0.6, 0.5]), *lines_of("fedsubavg", [0.6, 0.5])],
        "FedSubAvg and FedAvg both reached CentralSGD’s best train loss (0.500) in 10 rounds.",
        id="tie",
    ),
    pytest.param(
        [*THREE[:3], *lines_of("fedavg", [0.7, 0.6]), *lines_of("fedsubavg", [0.6, 0.6])],
        "Neither FedSubAvg nor FedAvg reached CentralSGD’s best train loss (0.500) "
        "within 10 rounds.",
        id="neither",
    ),
    pytest.param(
        [*THREE[:3], *lines_of("fedprox", [0.7, 0.6])],
        "FedProx did not reach CentralSGD’s best train loss (0.500) within 10 rounds.",
        id="another",
    ),
    pytest.param(
        THREE[3:],
        "FedSubAvg came to a best test loss of 0.450 within 20 rounds, FedAvg to 0.500.",
        id="no target",
    ),
    pytest.param(
        lines_of("fedadam", [0.7, 0.6]),
        "FedAdam came to a best test loss of 0.600 within 10 rounds.",
        id="one",
    ),
    pytest.param(lines_of("fedadam", [None])[:1], "FedAdam came to", id="nothing but accuracy"),
    pytest.param(THREE[:3], "CentralSGD came to a best test loss of 0.500", id="central alone"),
    pytest.param(
        [*THREE, *lines_of("fedavg", [0.6], seed=1), *lines_of("centralsgd", [0.5], seed=1)],
        "FedSubAvg reached CentralSGD’s best train loss (0.500) in 10 rounds, "
        "FedAvg in 20 rounds in 1 of 2 seeds.",
        id="partly",
    ),
]


@pytest.mark.parametrize(("lines", "sentence"), HEADLINES)
def test_headline_is_true_whoever_won(
    tmp_path: Path, lines: list[dict[str, Any]], sentence: str
) -> None:
    assert result_sentences.headline(summarise(lines)).startswith(sentence)
    assert sentence in report.write(folder_of(tmp_path, lines)).read_text("utf-8")


def test_cold_and_hot_and_a_quicker_third_are_told() -> None:
    summary = summarise([*THREE, *lines_of("fedadam", [0.4, 0.4])], bytes_full_model=60_000)
    cold = [("1–3 clients", {"fedavg": 0.68, "fedsubavg": 0.52}), ("9 clients", {"fedavg": 0.5})]
    said = " ".join(result_sentences.lede(summary, cold))
    assert "Quickest was FedAdam, in 0 rounds." in said
    assert "held by 1–3 clients, the final loss is 0.520 with FedSubAvg and 0.680" in said
    assert "downloads 3.00 kB a round, 5.00 % of the full model’s 60.0 kB." in said


def test_target_settings_of_the_summary_are_kept(tmp_path: Path) -> None:
    folder_of(tmp_path, THREE)
    written = report.write_summary(tmp_path, Target(value=0.6))
    assert json.loads((tmp_path / "summary.json").read_text()) == written
    assert "reached a train loss of 0.600" in report.write(tmp_path).read_text("utf-8")


def test_metrics_alone_are_enough(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"algorithm": "fedavg", "seed": 0, "round": 0}\n')
    assert "FedAvg, run for 0 rounds." in report.write(tmp_path).read_text("utf-8")


def test_a_line_cut_short_at_the_end_is_ignored(tmp_path: Path) -> None:
    path = folder_of(tmp_path, THREE) / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"algorithm": "fedavg", "se')
    assert len(read_metrics(path)) == len(THREE)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"metrics\.jsonl has no evaluated round yet: .*\."),
        ("", r"metrics\.jsonl has no evaluated round yet: .*\."),
        (
            '{"a\n{"algorithm": "x", "seed": 0, "round": 0}\n',
            r"Line 1 of .*metrics\.jsonl is no metrics line",
        ),
        ('{"algorithm": "x", "seed": 0}\n', r"Line 1 of .*metrics\.jsonl is no metrics line"),
        ("[]\n", r"Line 1 of .*metrics\.jsonl is no metrics line"),
    ],
)
def test_broken_metrics_are_named(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(RunFolderError, match=sentence):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["config.json", "data.json", "summary.json"])
def test_broken_json_is_named(tmp_path: Path, name: str) -> None:
    (folder_of(tmp_path, THREE) / name).write_text("{")
    with pytest.raises(RunFolderError, match=rf"{name} cannot be read as JSON"):
        report.write(tmp_path)


def test_ticks_are_round_numbers() -> None:
    assert axes.nice_ticks(0, 300) == [0, 50, 100, 150, 200, 250, 300]
    assert [axes.tick_label(t, 0.05) for t in axes.nice_ticks(0.57, 0.71, 3)] == [
        "0.60",
        "0.65",
        "0.70",
    ]
    assert axes.tick_label(1e6, 1e6) == "10⁶"
    assert axes.tick_label(-2e-5, 1e-5) == "-2·10⁻⁵"


def test_a_long_run_is_drawn_light(tmp_path: Path) -> None:
    long = [0.7 - 0.0001 * i for i in range(2001)]
    text = report.write(folder_of(tmp_path, lines_of("fedavg", long))).read_text("utf-8")
    line = re.search(r'class="curve line" d="M([^"]+)"', text)
    assert line is not None
    points = line[1].split("L")
    assert len(points) < 300  # no closer together than a pixel or two
    assert [points[0].split()[0], points[-1].split()[0]] == ["50", "466"]  # from end to end


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(tmp_path: Path, browser: Any, scheme: str, width: int) -> None:
    long = "a-name-that-goes-on-" * 6
    lines = [*THREE, *lines_of("fedavg", [0.7, 0.6, 0.55], seed=1), *lines_of(ATTACK, [0.6, 0.6])]
    path = report.write(folder_of(tmp_path, [*lines, *lines_of(long, [0.6])], name=ATTACK))
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    wrong: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert page.title().startswith(ATTACK)
    ink, paper = (page.evaluate(f"getComputedStyle(document.body).{p}") for p in PAINTS)
    dark_ink = sum(map(int, re.findall(r"\d+", ink))) < sum(map(int, re.findall(r"\d+", paper)))
    assert dark_ink == (scheme == "light")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("svg.chart")
    assert charts.count() == 7
    for i in range(charts.count()):
        box = charts.nth(i).bounding_box()
        assert box["width"] > 250
        assert box["height"] > 150
    strokes = page.evaluate(
        "[...document.querySelectorAll('.series:not(.guide) .line')]"
        ".map(e => getComputedStyle(e).stroke)"
    )
    assert len(set(strokes)) == 5  # one colour per algorithm

    charts.first.hover()
    assert "round" in page.locator("#tip").inner_text()
    charts.first.focus()
    page.keyboard.press("End")
    assert page.locator("#tip").inner_text().startswith("round: 20")
    page.keyboard.press("Home")
    assert ATTACK in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()

    page.locator("[data-toggle='0']").click()
    assert page.locator(".series[data-k='0']").first.is_hidden()
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    assert wrong == []
    assert asked == [path.as_uri()]
    page.close()


def test_there_is_no_tick_at_round_one_and_a_half() -> None:
    ticks = [label for _, label in axes.linear_axis([1, 2, 3], 0, 100, whole=True).ticks]
    assert ticks == ["1", "2", "3"]
    assert [at for at, _ in axes.linear_axis([4], 0, 100, whole=True).ticks] == [4]
    assert "1.5" in [label for _, label in axes.linear_axis([1, 2, 3], 0, 100).ticks]


def test_a_run_with_a_clock_has_a_curve_by_virtual_time(tmp_path: Path) -> None:
    lines = [*lines_of("fedavg", [0.69, 0.6, 0.5]), *lines_of("fedavg", [0.69, 0.6, 0.5], seed=1)]
    assert "by virtual time" not in report.write(folder_of(tmp_path, lines)).read_text("utf-8")
    for line in lines:
        line |= {"virtual_seconds": (1 + line["seed"]) * 30.0 * line["round"]}
    summary, curves = summarise(lines), by_algorithm(lines)
    (panel,) = time_panels(summary, curves, ["fedavg"])
    assert panel["panel"].curves[0].x == (0, 450, 900)  # round 10: of 300 and 600 seconds
    assert panel["panel"].curves[0].y == (0.69, 0.6, 0.5)
    page = report.write(folder_of(tmp_path, lines)).read_text("utf-8")
    assert "Train loss by virtual time" in page
    assert "Virtual s" in page
