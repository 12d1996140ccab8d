"""The page of the paper: its files, its numbers, and how it behaves in a real browser."""

import csv
import io
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from chromium import browser as browser

pytest.importorskip("jinja2", reason="needs jinja2: install fedrows[paper]")
pytest.importorskip("matplotlib", reason="needs matplotlib: install fedrows[paper]")

from paper_page import ARTEFACTS, ATTACK, CLAIMS, FACTS, HEAT, MISSING, RACE, RUNS

from fedrows.errors import RunFolderError
from fedrows.report import (
    axes,
    csv_files,
    line_styles,
    payload,
    results,
    results_page,
    saved_figures,
)
from fedrows.report.artefact import (
    Artefact,
    Cell,
    Curve,
    Figure,
    Panel,
    ResultTable,
    from_dict,
)
from fedrows.report.file_names import Files
from fedrows.report.labels import labels
from fedrows.report.shown_facts import shown_facts

pytestmark = pytest.mark.slow  # half of it in a browser
CURVES = [curve for a in ARTEFACTS for f in a.figures for p in f.panels for curve in p.curves]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    assert results.write(out, ARTEFACTS, RUNS, FACTS) == []
    return out


def points_of(text: str) -> tuple[list[list[str]], list[float]]:
    """The names in a figure's CSV, row by row, and its numbers, what is none as NaN."""
    rows = [*csv.reader(io.StringIO(text))][1:]
    found = [float(cell or "nan") for row in rows for cell in row[3:7]]
    return [row[:3] + row[7:] for row in rows], [v if math.isfinite(v) else math.nan for v in found]


def test_every_file_is_there(written: Path) -> None:
    files = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    figures = {"figure3", "heat", "heat-figure", "empty", "zeros"}
    assert files == {
        "index.html",
        "results.md",
        *(f"data/{name}.csv" for name in {*figures, "table2", "claims"}),
        *(f"figures/{name}.{ending}" for name in figures for ending in ("png", "svg")),
    }
    assert (written / "figures/figure3.png").read_bytes().startswith(b"\x89PNG")


def test_page_is_one_file_that_asks_for_nothing(written: Path) -> None:
    text = (written / "index.html").read_text("utf-8")
    assert len(text.encode()) < 5_000_000
    assert "<img" not in text
    assert text.count("<script") == text.count("</script") == 3  # two of them are data
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|src=\"| style=\"", text)
    assert not re.search(r"href=\"(?!#|data/|figures/)", text)
    policy = re.search(r"Content-Security-Policy\" content=\"([^\"]+)", text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]


def test_csv_of_a_figure_has_every_digit(written: Path) -> None:
    curve = RACE.figures[0].panels[0].curves[0]
    with (written / "data/figure3.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"] == "MovieLens"]
    own = [row for row in rows if row["curve"] == curve.name]
    assert [float(row["x"]) for row in own] == [*curve.x]
    assert [repr(float(row["y"])) for row in own] == [repr(v) for v in curve.y]
    assert own[0]["runs"].split() == [*curve.runs]


def test_ours_the_papers_and_the_ratio() -> None:
    cells = (Cell("FedSubAvg"), Cell("87", 87.0, "58", 58.0), Cell("x"))
    table = ResultTable("t", "T", ("algorithm", "rounds", "why"), (cells,))
    assert csv_files.table_csv(table).splitlines() == [
        "algorithm,rounds,rounds (paper),rounds (ratio),why",
        "FedSubAvg,87,58,1.5,x",
    ]
    assert csv_files.show_ratio(87.0, 58.0) == "×1.50"
    assert csv_files.show_ratio(1.0, 1e6) == "×1e-06"
    assert [csv_files.show_ratio(*v) for v in ((1.0, 0.0), (None, 2.0), (math.nan, 2.0))] == [
        ""
    ] * 3


def test_markdown_has_both_values_and_no_live_marks(written: Path) -> None:
    text = (written / "results.md").read_text("utf-8")
    assert "| FedSubAvg | 87 ± 3 (78, ×1.12) | 0.7101 ± 0.0012 (0.7102, ×1.00) |" in text
    assert "5 \\| 6" in text
    assert "![Train loss by round](figures/figure3.png)" in text
    assert "**Data missing.** There is no UserBehavior.csv" in text
    assert "From seeds 0, 1, 2." in text
    assert not re.search(r"(?<!\\)<", text)


def test_an_artefact_read_back_gives_the_same_page() -> None:
    # as kept by JSON, which knows no NaN
    kept = [from_dict(json.loads(payload.inline_json(asdict(a)))) for a in ARTEFACTS]
    pages = [results_page.render(each, RUNS, FACTS, Files(each)) for each in (ARTEFACTS, kept)]
    assert pages[0] == pages[1]


def test_unchanged_figures_are_not_drawn_again(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    first = saved_figures.draw
    monkeypatch.setattr(saved_figures, "draw", lambda f: (drawn.append(f.title), first(f))[1])
    results.write(written, ARTEFACTS, RUNS, FACTS)
    assert drawn == []
    (written / "figures/zeros.png").unlink()
    results.write(written, ARTEFACTS, RUNS, FACTS)
    assert drawn == ["Nothing above zero on log axes"]


def test_without_matplotlib_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [note] = results.write(tmp_path, ARTEFACTS, RUNS, FACTS)
    assert note.startswith("No figures were written as PNG and SVG")
    assert not (tmp_path / "figures").exists()
    assert "figures/" not in (tmp_path / "index.html").read_text("utf-8").split("<script")[0]


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    results.write(tmp_path, [MISSING], {}, {})
    before = (tmp_path / "index.html").read_bytes()
    (tmp_path / "data").write_text("a file where a folder should be")
    with pytest.raises(RunFolderError, match="cannot be written"):
        results.write(tmp_path, [CLAIMS], {}, {})
    assert (tmp_path / "index.html").read_bytes() == before


def test_a_study_of_ones_own_has_its_own_title(tmp_path: Path) -> None:
    results.write(tmp_path, [CLAIMS], {}, {"title": "My <study>", "summary": "Two rates."})
    text = (tmp_path / "index.html").read_text("utf-8")
    assert "<h1>My &lt;study&gt;</h1>" in text
    assert "Two rates." in text
    assert "NeurIPS" not in text


def test_what_is_said_first() -> None:
    said = dict(shown_facts({**FACTS, "seconds": 400}, ARTEFACTS, RUNS))
    assert said["Claims of the paper"] == "1 holds, 1 does not, 1 cannot be tested"
    assert said["Data missing"] == "1 of 4 experiments"
    assert said["Runs"] == "300 with 50 seeds, 3.1 h in all"  # 6 · (50 · 12.25 + 1225) s
    assert said["This call"] == "7 min"


def test_nothing_at_all_is_still_a_page(tmp_path: Path) -> None:
    assert results.write(tmp_path, [], {}, {}) == []
    assert "The paper, reproduced" in (tmp_path / "index.html").read_text("utf-8")


def test_algorithms_look_as_in_the_reports() -> None:
    looks = line_styles.styles(RACE.figures[0])
    assert looks["FedSubAvg"] == "s0"
    assert looks["FedAvg"] == "s1"
    assert looks["label prior"] == "guide"
    assert len({looks[name] for name in looks if looks[name] != "guide"}) == 9
    names = ("FedSubAvg, K = 10", "FedSubAvg, K = 30", "FedSubAvg, K = 50")
    panel = Panel("", "", "", tuple(Curve(name, (0.0,), (0.0,)) for name in names))
    varied = line_styles.styles(Figure("f", "F", (panel,)))
    assert varied[names[0]] == "s0"
    assert len({*varied.values()}) == 3
    assert line_styles.inks()["s0"].colour == "#0f5fc2"
    assert len(line_styles.inks()) == 13


def test_a_guide_of_one_point_goes_from_end_to_end() -> None:
    guide = Curve("target", (), (0.5,), kind="guide")
    panel = Panel("", "round", "loss", (Curve("a", (1.0, 9.0), (0.0, 1.0)), guide))
    assert line_styles.level(guide, panel).x == (1.0, 9.0)
    assert line_styles.level(guide, panel).y == (0.5, 0.5)


def test_labels_of_guides_hide_neither_curves_nor_each_other() -> None:
    rising = Curve("a", (0.0, 10.0), (0.0, 1.0))
    guides = [
        Curve(n, (0.0, 10.0), (y, y), kind="guide") for n, y in (("high", 0.98), ("low", 0.96))
    ]
    high, low = labels(axes.lay_out(Panel("", "", "", (rising, *guides))))
    assert not high.right  # the curve ends where its name would be
    boxes = high.box, low.box
    across = min(b[2] for b in boxes) > max(b[0] for b in boxes)
    down = min(b[3] for b in boxes) > max(b[1] for b in boxes)
    assert not (across and down)


def test_lost_numbers_part_a_line() -> None:
    curve = Curve("a", (1.0, 2.0, 3.0, 4.0), (1.0, math.nan, 0.0, 2.0))
    assert [len(piece) for piece in axes.pieces(curve, Panel("", "", "", ()))] == [1, 2]
    logs = Panel("", "", "", (curve,), log_y=True)
    assert [piece[0].x for piece in axes.pieces(curve, logs)] == [1.0, 4.0]
    assert axes.left_out(logs) == 1


def test_a_heavy_page_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "BUDGET", 20_000)
    places = {name: i for i, name in enumerate(RUNS)}
    text, thinned = payload.figures_json({"figure3": RACE.figures[0]}, places)
    found = json.loads(text)["figure3"]
    kept = found["xs"][found["panels"][0]["curves"][0][2]]
    assert thinned
    assert kept[0] == 0
    assert kept[-1] == 999
    assert len(kept) < 300


class Visit:
    """The page opened in a browser, which notes what it asks for and complains of."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto((path / "index.html").as_uri())

    def end(self, path: Path) -> None:
        assert self.wrong == []
        # the page, and the CSV that it makes itself
        left = [url for url in self.asked if not url.startswith("blob:")]
        assert left == [(path / "index.html").as_uri()]
        self.page.close()


def test_a_reader_clicks_through(written: Path, browser: Any) -> None:
    visit = Visit(browser, written, viewport={"width": 1280, "height": 800})
    at = visit.page
    assert at.title() == "The paper, reproduced"
    assert at.locator("main h2").first.inner_text() == CLAIMS.title
    assert at.locator("path.curve").count() == len(CURVES)
    drawn = at.evaluate(
        "[...document.querySelectorAll('path.curve')].filter(p => p.getAttribute('d')).length"
    )
    assert drawn == len(CURVES) - 3  # one is empty, one is never a number, one has no logarithm

    link = at.locator("nav a", has_text=HEAT.title)
    link.click()
    at.locator("nav a[aria-current]", has_text=HEAT.title).wait_for()
    assert at.evaluate("location.hash") == link.get_attribute("href")

    figure = at.locator("[data-figure='figure3']")
    chart = figure.locator("svg.chart").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    at.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = at.locator("#tip")
    assert tip.inner_text().startswith("round: ")
    assert tip.locator("div").count() == 8  # six curves and two guides

    toggle = figure.locator("[data-toggle]", has_text="FedAvg")
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "false"
    assert figure.locator(".series[data-k='1']").first.is_hidden()
    chart.focus()
    at.keyboard.press("Home")
    assert tip.inner_text().startswith("round: 0")
    assert "FedAvg" not in tip.inner_text()
    curve = RACE.figures[0].panels[0].curves[0]
    assert f"{curve.y[0]:.4f}" in tip.inner_text()
    at.keyboard.press("ArrowDown")
    at.keyboard.press("Enter")
    assert at.locator("#behind-title").inner_text() == "FedSubAvg: MovieLens"
    assert at.locator("#behind details").count() == 3
    at.keyboard.press("Escape")
    assert at.locator("#behind").is_hidden()
    toggle.click()
    assert figure.locator(".series[data-k='1']").first.is_visible()
    visit.end(written)


def test_a_number_leads_to_its_runs(written: Path, browser: Any) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    visit = Visit(context, written)
    at = visit.page
    at.get_by_role("button", name="87 ± 3").click()
    dialog = at.locator("#behind")
    assert dialog.locator("h2").inner_text() == "FedSubAvg, MovieLens: 87 ± 3"
    assert dialog.locator("details").count() == 3
    command = dialog.locator("pre").first.inner_text()
    assert command == RUNS["fedsubavg-0"]["command"]
    shown = dialog.locator("details").first.inner_text()
    assert "clients_per_round" in shown
    assert ATTACK in shown
    dialog.get_by_role("button", name="Copy").first.click()
    dialog.get_by_role("button", name="Copied").wait_for()
    assert at.evaluate("navigator.clipboard.readText()") == command
    at.locator("#close").click()
    assert dialog.is_hidden()

    at.get_by_role("button", name="> 1000").click()
    dialog.locator("summary", has_text="lost-run").click()
    assert "not at hand" in dialog.inner_text()
    at.keyboard.press("Escape")
    at.evaluate("location.hash = '#run-fedadam-7'")
    dialog.locator("summary", has_text="fedadam-7").wait_for()
    visit.end(written)
    context.close()


@pytest.mark.parametrize("key", ["figure3", "heat", "heat-figure"])
def test_the_download_has_the_data(written: Path, browser: Any, key: str, tmp_path: Path) -> None:
    visit = Visit(browser, written)
    with visit.page.expect_download() as waiting:
        visit.page.locator(f"[data-figure='{key}'] [data-csv]").click()
    assert waiting.value.suggested_filename == f"{key}.csv"
    waiting.value.save_as(tmp_path / "got.csv")
    names, values = points_of((tmp_path / "got.csv").read_text("utf-8"))
    wanted_names, wanted = points_of((written / f"data/{key}.csv").read_text("utf-8"))
    assert names == wanted_names
    assert values == pytest.approx(wanted, rel=1e-6, nan_ok=True)
    visit.end(written)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_light_and_dark_and_a_phone(written: Path, browser: Any, scheme: str, width: int) -> None:
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    visit = Visit(browser, written, **options, has_touch=width == 390)
    at = visit.page
    assert at.evaluate("document.documentElement.scrollWidth") <= width
    paint = "getComputedStyle(document.body).backgroundColor"
    before = at.evaluate(paint)
    dark = sum(map(int, re.findall(r"\d+", before))) < 300
    assert dark == (scheme == "dark")
    at.locator("#theme").click()
    assert at.evaluate(paint) != before
    boxes = [c.bounding_box() for c in at.locator("svg.chart").all()]
    assert all(box["width"] > 250 and box["height"] > 150 for box in boxes)
    if width == 390:
        chart = at.locator("svg.chart").first
        chart.scroll_into_view_if_needed()
        chart.tap()
        assert at.locator("#tip").is_visible()
        assert at.locator("#behind").is_hidden()  # a finger reads; the legend opens the runs
        at.locator(".behind").first.tap()
        assert at.locator("#behind").is_visible()
        assert at.evaluate("document.documentElement.scrollWidth") <= width
    visit.end(written)


def test_where_x_turns_back_the_nearest_point_is_shown(written: Path, browser: Any) -> None:
    visit = Visit(browser, written)
    chart = visit.page.locator("[data-figure='heat-figure'] svg.chart")
    chart.focus()
    visit.page.keyboard.press("Home")
    assert visit.page.locator("#tip b").inner_text() == "x₁: 1"
    assert visit.page.locator("#tip div").count() == 1
    visit.end(written)


def test_many_runs_and_long_curves_stay_light() -> None:
    figures = tuple(replace(RACE.figures[0], key=f"copy-{i}") for i in range(60))
    runs = {f"run-{i}": {**RUNS["fedavg-0"], "seed": i} for i in range(700)} | RUNS
    artefacts = [Artefact("a", "A", figures=figures)]  # 720 curves
    text = results_page.render(artefacts, runs, FACTS, Files(artefacts))
    assert len(text.encode()) < 5_000_000
    assert "were thinned" in text
