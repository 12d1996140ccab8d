"""The options of plug-ins and the files of tasks; an error where one of them would be lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Capture
from test_plugins import ALGORITHM, RUN, _as_in_a_new_process, install, says  # noqa: F401

from fedrows import Study, catalogue
from fedrows.cli import main
from fedrows.errors import PlanError, PluginError


def test_an_option_that_would_have_no_flag_is_refused(capsys: Capture) -> None:
    mine = Path("mine.py").absolute()
    lost = 'factor: float = option(0.5, "Share of the mean that the model moves by.", above=0)'
    for line, part in {
        'lr: float = option(0.5, "x")': "option lr, which is the name of one of the plan",
        'delta: float = option(0.5, "x")': "option delta, but --delta is a flag",
        'out: str = option("", "x")': "option out, but --out is a flag",
        "factor: float = 0.5": "field factor that is no option",
    }.items():
        Path("mine.py").write_text(ALGORITHM.replace(lost, line))
        catalogue._REFERRED.clear()
        assert main([*RUN, "--algorithm", "mine.py:Halved", "--data-items", "20"]) == 2
        error = capsys.readouterr().err
        assert part in error
        assert str(mine) in error
    Path("mine.py").write_text(ALGORITHM.replace("@dataclass(frozen=True)\n", ""))
    with pytest.raises(PluginError) as refused:
        catalogue.algorithm("mine.py:Halved")
    says(refused, str(mine), "Halved, which is no dataclass")


@pytest.mark.parametrize("kind", ["algorithm", "mechanism", "task"])
def test_the_options_of_our_own_would_pass_as_plug_ins(kind: str) -> None:
    for name in catalogue.built_in(kind):
        catalogue._check(kind, catalogue.own(kind, name), name, "its file")


def test_a_study_makes_runs_anew_when_a_file_of_the_task_has_changed() -> None:
    assert main(["init", "shop"]) == 0

    def ids() -> set[str]:
        study = Study.grid("shop/data.py:TASK", ["fedavg"], seeds=[0])
        return set(study.planned())

    first, file = ids(), Path("shop/ratings.csv")
    assert ids() == first
    file.write_text(file.read_text() + "1,1,5,99\n")
    assert ids().isdisjoint(first)


def test_an_unknown_writer_is_told_of_plug_ins_only(capsys: Capture) -> None:
    assert main([*RUN, "--writer", "zzz", "--out", "a"]) == 2
    assert "no plug-in with a writer is installed" in capsys.readouterr().err
    install("writer", "csv", "given:thing", "thing = None")
    assert main([*RUN, "--writer", "zzz", "--out", "a"]) == 2
    assert "choose one of csv." in capsys.readouterr().err


def test_a_study_says_that_it_has_no_setting() -> None:
    with pytest.raises(PlanError, match="at least one setting, but has none"):
        Study([], seeds=[0])
