"""Help: it is shown without torch, in no time, and says what the commands themselves would say."""

import json
import subprocess
import sys
from pathlib import Path

import make_help
import pytest

from fedrows import cli
from fedrows.cli import stored_help
from fedrows.cli.flags import Parser

ROOT = Path(__file__).parent.parent
AGAIN = "call python docs/make_help.py"


def test_help_needs_no_torch() -> None:
    """Every command and subcommand, in one process that would have torch if any imported it."""
    asked = [[*words.split(), "--help"] for words in [*make_help.commands(), "bench"]]
    script = (
        "import sys\n"
        "from fedrows.cli import main\n"
        f"for words in {[['--help'], *asked]}:\n"
        "    assert main(words) == 0, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: fedrows") == len(asked) + 1


def test_what_is_kept_is_what_the_commands_say() -> None:
    helps = make_help.collected()
    kept = json.loads(stored_help.FILE.read_text("utf-8"))
    assert kept.keys() == helps.keys(), AGAIN
    assert [words for words in helps if helps[words] != kept[words]] == [], AGAIN
    assert stored_help.FILE.read_text("utf-8") == make_help.as_text(helps), AGAIN


@pytest.mark.parametrize("words", ["run", "privacy explain", "export", "deploy"])
def test_it_looks_the_same(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert cli.main([*words.split(), "--help"]) == 0
    kept = capsys.readouterr().out
    monkeypatch.setattr(stored_help, "shown", lambda words: False)
    assert cli.main([*words.split(), "--help"]) == 0
    assert capsys.readouterr().out == kept


def test_help_on_a_task_or_with_plug_ins_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Parser, "print_help", lambda parser: shown.append(parser.prog))
    assert not stored_help.shown(["run", "synthetic", "--help"])
    assert not stored_help.shown(["run", "synthetic"])
    assert stored_help.shown(["run", "-h"])
    monkeypatch.setattr(stored_help, "PLUGINS", "console_scripts")  # which are always there
    assert not stored_help.shown(["run", "-h"])
    assert shown == ["fedrows run"]
