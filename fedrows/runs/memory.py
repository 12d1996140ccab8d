"""Memory that is short, in a message that says what to lower."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedrows.errors import MemoryShortageError
from fedrows.plan import Plan

# PyTorch has no class of its own for these.
_SIGNS = (
    "can't allocate memory",
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "ALLOC_FAILED",
    "bad_alloc",
    "can't start new thread",
)
_WANTED = r"(?i:tried to allocate|Unable to allocate) ([\d.]+ \w+)"


@contextmanager
def fits_in_memory(what: str | Callable[[], str], lower: Callable[[], str]) -> Iterator[None]:
    """Raises a MemoryShortageError where memory is short in the block.

    what: what needs it. lower: what is to be done about it.
    """
    try:
        yield
    except MemoryShortageError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_shortage(error):
            raise
        name = what if isinstance(what, str) else what()
        raise MemoryShortageError(
            f"There is not enough {_memory(error)} for {name}: {lower()}."
        ) from error


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def lower_in_a_round(plan: Plan) -> str:
    """What to change about a round that takes too much memory."""
    words = [f"clients-per-round (now {plan.clients_per_round})"]
    words += [f"batch-size (now {plan.batch_size})", f"train-sample (now {plan.train_sample})"]
    if plan.chunk != 1:
        words.append("chunk, the clients that train together")
    return f"lower {', '.join(words[:-1])} or {words[-1]}" + _mapped(plan)


def lower_at_the_start(plan: Plan) -> str:
    """What to change about a model that takes too much memory."""
    gpu = "" if plan.torch_device.type == "cpu" else ", or run it with device cpu"
    return "choose smaller data or a smaller model" + _mapped(plan) + gpu


def _mapped(plan: Plan) -> str:
    if plan.tables == "mapped":
        return ""
    return ", or keep its tables in files with tables mapped"


def _memory(error: BaseException) -> str:
    """The memory that is short, and how much of it was asked for."""
    text = " ".join(str(error).split())
    gpu = isinstance(error, torch.OutOfMemoryError) or "CUDA" in text or "CUBLAS" in text
    wanted = re.search(_WANTED, text)
    asked = "" if wanted is None else f" (it needs {_readable(wanted[1])} more)"
    return ("memory on the GPU" if gpu else "memory") + asked


def _readable(amount: str) -> str:
    """An amount such as "8000000000000 bytes" in a unit that can be read."""
    number, unit = amount.split()
    if unit != "bytes":
        return f"{float(number):g} {unit}"
    size, units = float(number), iter(("bytes", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while size >= 1000 and unit != "PB":
        size, unit = size / 1000, next(units)
    return f"{size:.3g} {unit}"
