"""The command line, one file per command. Only the command that is called is imported.

So `fedrows --help` needs no torch. The help of a command does not either: see `stored_help`. Every
error is one line on stderr and exit code 2. Exit code 130 means that a run was stopped and saved.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, ModuleType

from fedrows.cli import stored_help
from fedrows.errors import INTERRUPTED, FedrowsError, UnknownNameError
from fedrows.version import __version__

COMMANDS = {
    "run": "Train one algorithm on a task.",
    "compare": "Train several algorithms on a task, over several seeds, and compare them.",
    "tune": "Search rates and options of algorithms, on validation examples alone.",
    "paper": "Reproduce the paper: its tables, figures and theorems, on one page.",
    "heat": "Show how many clients hold each feature of a task.",
    "data": "List the data sets, show where their files are, and fetch them.",
    "privacy": "Say who learns what in a private run, and compare ways to count heat.",
    "init": "Write a small project that you change into your own.",
    "export": "Write the trained model of a run: a bundle, a state dict or ONNX.",
    "predict": "Score new rows by the model of a bundle.",
    "evaluate": "Measure the model of a bundle on rows with labels.",
    "deploy": "Train over a real network: nodes, a server, keys, a demo on this machine.",
    "watch": "Serve a page that follows runs, comparisons and deployments as they go.",
    "report": "Make the report.html of a run or comparison again.",
    "bench": "Measure how fast fedrows is.",
}
REFUSED, PIPE_CLOSED = 2, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, and gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ± shows ?
    if "RANK" in os.environ:  # PyTorch would add a stack trace to the sentence on who is gone
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as end:  # argparse's way to end after --help
        return int(end.code or 0)
    except FedrowsError as error:
        return _refuse(str(error))
    except (MemoryError, RuntimeError, OSError) as error:
        return _refuse(_sentence(error))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"fedrows {__version__}")
        return 0
    if words[0].startswith("-"):
        raise UnknownNameError("option", words[0], ["--help", "--version"])
    if words[0] not in COMMANDS:
        raise UnknownNameError("command", words[0], COMMANDS)
    if stored_help.shown(words):
        return 0
    return int(module_of(words[0]).main(words[1:]))


def module_of(name: str) -> ModuleType:
    """One of the files beside this one, imported now."""
    with _leaving_at_once():
        return importlib.import_module(f"fedrows.cli.{name}")


def _open_streams() -> None:
    """Opens standard streams that are closed onto nothing: the next file would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(nothing := os.open(os.devnull, os.O_RDWR), number)
            if nothing != number:
                os.close(nothing)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Ends the process at Ctrl-C: while packages are imported, they would show where they are."""

    def leave(number: int, frame: FrameType | None) -> None:
        os.write(2, b"Stopped.\n")
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before == signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _help() -> str:
    commands = "\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items())
    return (
        "usage: fedrows COMMAND …\n\n"
        "Federated learning for models with large embedding tables: move rows, not models.\n\n"
        f"{commands}\n\n"
        "  fedrows COMMAND --help      what a command does and its options\n"
        "  fedrows --version           the version\n\n"
        "To begin with:  fedrows compare synthetic"
    )


def _sentence(error: MemoryError | RuntimeError | OSError) -> str:
    """What to say of an error that came from outside this package; raises it if that is unknown."""
    from fedrows.runs.memory import is_shortage  # which imports torch

    if is_shortage(error):
        return "There is not enough memory: choose smaller data or a smaller model."
    if not isinstance(error, OSError):
        raise error
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def _refuse(sentence: str) -> int:
    with suppress(OSError):  # the terminal is gone
        print("fedrows: " + " ".join(sentence.split()), file=sys.stderr)
    return REFUSED
