"""Algorithms, models, tasks, writers and privacy mechanisms by name: ours, and others'.

    fedavg              a file in one of our folders
    fedavgm             an entry point of an installed package, in the group `fedrows.algorithms`
    package.module:Name, path/to/file.py:Name      any object that can be imported

Listing names imports nothing, so that a plug-in that is broken does no harm until it is asked for.
What was loaded by reference is known by its own name from then on, in this process.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrows.errors import PluginError, UnknownNameError
from fedrows.files.plugin_checks import (
    check_class,
    check_is,
    check_options,
    kind_of,
    source_of,
)
from fedrows.files.plugins import attribute, file_of, import_file, import_module
from fedrows.options import NoOptions, options

if TYPE_CHECKING:  # nothing is imported until it is asked for
    from fedrows.algorithm import Algorithm
    from fedrows.data.federation import FederatedData
    from fedrows.model import Model
    from fedrows.task import Task

DEFAULT = "fedsubavg"  # the algorithm that runs unless another is named, and reports are about
BASELINE = "fedavg"  # the algorithm whose rounds a speed-up is counted in
REFERENCE = "centralsgd"  # the algorithm on pooled data whose best is the target of the others

FOLDERS = {
    "algorithm": "algorithms",
    "model": "models",
    "task": "datasets",
    "writer": "watch.writers",
    "mechanism": "privacy.mechanisms",
}
GROUPS = {  # of entry points
    **{kind: f"fedrows.{kind}s" for kind in ("algorithm", "model", "task", "writer")},
    "mechanism": "fedrows.privacy",
}
CLASSES = {  # kind → what its classes are derived from
    "algorithm": "fedrows.algorithm.Algorithm",
    "mechanism": "fedrows.privacy.mechanism.Mechanism",
}
FROM = "from"  # in config.json: the reference of a plug-in that is no installed one

_REFERRED: dict[tuple[str, str], tuple[str | None, Any]] = {}  # (kind, name) → reference, object


def names(kind: str) -> list[str]:
    """The names of everything of a kind, such as algorithm; imports none of it."""
    referred = (name for of, name in _REFERRED if of == kind)
    return sorted({*built_in(kind), *_installed(kind), *referred})


def built_in(kind: str) -> list[str]:
    """The names of what comes with this package, sorted."""
    if kind not in FOLDERS:
        raise UnknownNameError("kind of thing", kind, FOLDERS)
    folder = importlib.import_module(f"fedrows.{FOLDERS[kind]}")
    modules = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return sorted(_shown(kind, name) for name in modules if not name.startswith("_"))


def _shown(kind: str, module: str) -> str:
    """The name of what a module brings: a task's words are joined by a hyphen, as in options."""
    return module.replace("_", "-") if kind == "task" else module


def reference(kind: str, name: str) -> str | None:
    """The reference that a name was loaded by, its path absolute; None if it was not by any."""
    given, _ = _REFERRED.get((kind, name), (None, None))
    return given


@contextmanager
def known_here(kind: str, name: str, thing: Any) -> Iterator[None]:
    """Makes an object of this process known by a name, for a while."""
    before = _REFERRED.get((kind, name))
    _REFERRED[kind, name] = (None, thing)
    try:
        yield
    finally:
        if before is None:
            del _REFERRED[kind, name]
        else:
            _REFERRED[kind, name] = before


def installed(kind: str, name: str) -> bool:
    """Whether an installed package brings something of a kind by that name."""
    return name in _installed(kind)


def stored_name(kind: str, name: str) -> dict[str, str]:
    """A name as config.json has it, so that a plug-in is found when a run goes on."""
    given = reference(kind, name)
    return {"name": name} if given is None else {"name": name, FROM: given}


def short(name: str) -> str:
    """An algorithm's name without the module or the file of a reference."""
    return name.rpartition(":")[2].lower()


def algorithm(name: str) -> type[Algorithm]:
    """The algorithm's class."""
    return _find("algorithm", name)


def task(name: str) -> Task:
    """The task of a data set."""
    return _find("task", name)


def model(name: str) -> Callable[..., Model]:
    """The function that builds the model for some data, its start values drawn with a seed.

    It takes the model's own options by name. A plug-in's function may return a plain module, which
    is lifted over cohorts.
    """
    build = builder(name)

    def built(data: FederatedData, seed: int = 0, **own: Any) -> Model:
        from torch import nn

        from fedrows.lifting.lifted import Lifted
        from fedrows.model import Model

        made = build(data, seed, **own)
        if isinstance(made, nn.Module):
            made = Lifted(made, data)
        if isinstance(made, Model):
            made.options = own or made.options
            return made
        raise PluginError(
            f"The model {name!r} ({source_of(build)}) returned what is {kind_of(made)}: let it "
            "return a torch module or a fedrows.model.Model."
        )

    return built


def builder(name: str) -> Callable[..., Any]:
    """A model's own function, which returns a model or a plain module."""
    return _find("model", name)


def model_options(name: str) -> type:
    """The dataclass of a model's options, which its function names by `options.takes`."""
    return getattr(described("model", name), "options", NoOptions)


def writer(name: str) -> Callable[[Any], Any]:
    """The function that opens a writer of what a run measures."""
    return _find("writer", name)


def mechanism(name: str) -> type[Any]:
    """The privacy mechanism's class, a `fedrows.privacy.mechanism.Mechanism`."""
    return _find("mechanism", name)


def title(name: str) -> str:
    """The algorithm's name as people write it; a name that is not known here stays as it is."""
    plugin = _known_algorithm(name)
    return name if plugin is None else plugin.shown()


def colours() -> dict[str, int]:
    """Name → the colour in reports, of all algorithms that have one of their own."""
    known = {name: _known_algorithm(name) for name in names("algorithm")}
    return {name: x.colour for name, x in known.items() if x is not None and x.colour is not None}


def summable() -> list[str]:
    """The built-in algorithms that need no more than the sum of the updates."""
    return [name for name in built_in("algorithm") if own("algorithm", name).summable]


def instead_in_sums(algorithm: Algorithm) -> str:
    """What to use in place of an algorithm that is not summable, for an error message."""
    nearest = algorithm.nearest_summable
    names = f"one of {', '.join(summable())}"
    return f"{names}; nearest to {algorithm.name} is {nearest}" if nearest else names


def described(kind: str, name: str) -> Any:
    """What a name stands for in help and lists, where a plug-in that took a built-in's name is
    no error: the built-in."""
    return own(kind, name) if name in built_in(kind) else _find(kind, name)


def code_of(thing: object) -> str | None:
    """A hash of the file that defines a plug-in's class or function; None for our own."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__.partition(".")[0] == "fedrows":
        return None
    return _hash(module.__name__, file)


@cache
def _hash(module: str, file: str) -> str:
    """The SHA-256 of a module's file, worked out once: what was imported does not change."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _known_algorithm(name: str) -> type[Algorithm] | None:
    """The class behind a name; None if it is not here, or does not load.

    A reference is not followed: a name that was read from a file must not import anything new.
    """
    if ":" in name or name not in names("algorithm"):
        return None
    try:
        return described("algorithm", name)
    except PluginError:
        return None


def _find(kind: str, name: str) -> Any:
    """The object behind a name or a reference."""
    if ":" in name or name.endswith(".py"):
        return _refer(kind, name)
    if (kind, name) in _REFERRED:
        return _REFERRED[kind, name][1]
    plugged = _installed(kind).get(name, [])
    if name in built_in(kind):
        if plugged:
            raise PluginError(
                f"The {kind} plug-in {_about(plugged[0])} has the name of a built-in {kind}: "
                "uninstall it, or have its entry point renamed."
            )
        return own(kind, name)
    if not plugged:
        raise UnknownNameError(kind, name, names(kind))
    if len(plugged) > 1:
        raise PluginError(
            f"Two {kind} plug-ins have the same name, {_about(plugged[0])} and "
            f"{_about(plugged[1])}: uninstall one of them."
        )
    what = f"The {kind} plug-in {_about(plugged[0])}"
    entry = plugged[0]
    module = import_module(entry.module, what)
    plugin = attribute(module, entry.attr, what)
    _check(kind, plugin, what, file_of(module))
    own_name = _own_name(kind, plugin)
    if own_name not in (None, name):
        raise PluginError(f"{what} is called {own_name!r}: name its entry point so too.")
    return plugin


def own(kind: str, name: str) -> Any:
    """What one of our own files brings, whatever plug-ins there are."""
    file = name.replace("-", "_") if kind == "task" else name
    module = importlib.import_module(f"fedrows.{FOLDERS[kind]}.{file}")
    if kind in CLASSES:
        for word, value in vars(module).items():
            if word.lower() == name and isinstance(value, type):
                return value
        raise TypeError(f"{module.__name__} defines no class whose name in lower case is {name!r}.")
    return getattr(module, {"model": "build", "task": "TASK", "writer": "opened"}[kind])


def _refer(kind: str, text: str) -> Any:
    """The object behind `module:Name` or `file.py:Name`, from then on known by its own name."""
    where, _, word = text.partition(":") if text.endswith(".py") else text.rpartition(":")
    what = f"The {kind} {text!r}"
    if not where or not word.isidentifier():
        raise PluginError(f"{what} names no object: write module:Name or path/to/file.py:Name.")
    file = Path(where).expanduser().absolute() if where.endswith(".py") else None
    given = text if file is None else f"{file}:{word}"
    module = import_module(where, what) if file is None else import_file(file, what)
    plugin = attribute(module, word, what)
    _check(kind, plugin, what, file_of(module))
    if kind == "task" and file is not None and plugin.model.partition(":")[0].endswith(".py"):
        # A relative file is one beside the task's own.
        plugin = replace(plugin, model=str(file.parent / plugin.model))
    name = _own_name(kind, plugin)
    shown = name or word.lower()
    if shown in built_in(kind) or shown in _installed(kind):
        whose = "a built-in" if shown in built_in(kind) else "an installed"
        raise PluginError(
            f"{what} ({source_of(plugin, file)}) has the name of {whose} {kind}, {shown}: give it "
            "another."
        )
    if name is not None:
        before = reference(kind, name)
        if before not in (None, given):
            raise PluginError(
                f"{what} has the name {name}, and so has {before}: give one of them another."
            )
        _REFERRED[kind, name] = given, plugin
    return plugin


def _check(kind: str, plugin: Any, what: str, file: str) -> None:
    """Raises a PluginError if an object is not of its kind."""
    from fedrows.plan import Plan
    from fedrows.task import Task

    article = "an" if kind == "algorithm" else "a"
    if kind in CLASSES:
        module, _, word = CLASSES[kind].rpartition(".")
        parent = getattr(importlib.import_module(module), word)
        wanted = f"{article} {kind} must be a class derived from {CLASSES[kind]}"
        check_class(plugin, parent, wanted, what, file)
        taken = {item.name for item in options(Plan)} if kind == "algorithm" else set[str]()
        check_options(plugin, parent, taken, f"{what} ({file})")
    elif kind == "task":
        wanted = "a task must be a fedrows.task.Task"
        check_is(isinstance(plugin, Task), plugin, wanted, what, file)
        check_options(plugin.options, object, set(), f"{what} ({file})")
    else:
        check_is(callable(plugin), plugin, f"a {kind} must be a function", what, file)


def _own_name(kind: str, plugin: Any) -> str | None:
    """The name that a class or a task has of itself."""
    if kind in CLASSES:
        return str(plugin.__name__).lower()
    return str(plugin.name) if kind == "task" else None


@cache
def _installed(kind: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a kind by name, read once."""
    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUPS[kind]):
        if entry not in entries.setdefault(entry.name, []):
            entries[entry.name].append(entry)
    return entries


def _about(entry: EntryPoint) -> str:
    """An entry point in an error: its name, its object, and the distribution it came with."""
    whose = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
    return f"{entry.name!r}{whose} ({entry.value})"
