"""Imports what others wrote, by module or by file, and checks that it is what it is named as.

A plug-in must be of its kind, whole, and with options that make flags. What goes wrong is a
PluginError. `what` is how an error names the plug-in, such as: The algorithm 'mine.py:FedAvgM'.
`wanted` is what it must be.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Collection
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedrows.errors import PluginError


def refer(text: str, what: str, name: str = "Name") -> tuple[Any, ModuleType, Path | None]:
    """The object behind `module:Name` or `path/to/file.py:Name`, its module, and such a path."""
    where, _, word = text.rpartition(":")
    if not where or not word.isidentifier():
        raise PluginError(f"{what} names no object: write module:{name} or path/to/file.py:{name}.")
    file = Path(where).expanduser().absolute() if where.endswith(".py") else None
    module = import_module(where, what) if file is None else import_file(file, what)
    return attribute(module, word, what), module, file


def attribute(module: ModuleType, word: str, what: str) -> Any:
    """What a module calls by a name, which may have dots."""
    value: Any = module
    for part in word.split("."):
        if not hasattr(value, part):
            raise PluginError(f"{what} is not there: {file_of(module)} defines no {word}.")
        value = getattr(value, part)
    return value


def import_module(name: str, what: str) -> ModuleType:
    """A module by its name; whatever goes wrong in it is a PluginError."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, AttributeError, ValueError):
            spec = None
        file = name if spec is None or spec.origin is None else spec.origin
        raise PluginError(f"{what} does not import: {file} fails ({why(error)}).") from error


def import_file(path: Path, what: str) -> ModuleType:
    """A file as a module; its neighbours can be imported as in `python file.py`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PluginError(
            f"{what} cannot be read: {path} ({error.strerror or error}); name a file that exists."
        ) from error
    name = f"fedrows_file_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the last place, so that nothing installed is hidden
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(f"{what} does not import: {path} fails ({why(error)}).") from error
    return module


def file_of(module: ModuleType) -> str:
    """The file of a module, or its name if it has none."""
    return str(getattr(module, "__file__", None) or module.__name__)


def why(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


def check_is(right: bool, plugin: Any, wanted: str, what: str, file: str) -> None:
    """Raises a PluginError unless an object is right."""
    if not right:
        raise PluginError(f"{what} ({file}) is {kind_of(plugin)}, but {wanted}.")


def check_class(plugin: Any, parent: type, wanted: str, what: str, file: str) -> None:
    """Raises a PluginError unless an object is a class derived from a parent, with all methods."""
    right = isinstance(plugin, type) and issubclass(plugin, parent)
    check_is(right, plugin, wanted, what, file)
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(plugin.__abstractmethods__))
        raise PluginError(f"{what} ({source_of(plugin)}) has no {missing}: define the method.")


def check_options(owner: type, parent: type, taken: Collection[str], what: str) -> None:
    """Raises a PluginError if an option of a class would have no flag of its own."""
    inherited = {item.name for item in fields(parent)} if is_dataclass(parent) else set[str]()
    announced = [name for name, value in vars(owner).items() if isinstance(value, Field)]
    if not is_dataclass(owner) or announced:
        raise PluginError(
            f"{what} has options in {owner.__name__}, which is no dataclass: write "
            "@dataclass(frozen=True) before the class."
        )
    for item in fields(owner):
        if item.name in inherited:
            continue
        if "help" not in item.metadata:
            raise PluginError(
                f"{what} has a field {item.name} that is no option: give it the value "
                "fedrows.options.option(default, help)."
            )
        if item.name in taken:
            raise PluginError(
                f"{what} has an option {item.name}, which is the name of one of the plan: "
                "give it another."
            )


def source_of(thing: Any, file: Path | None = None) -> str:
    """The file that something is defined in, or else its module."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    return str(file or (file_of(module) if module else "of an unknown file"))


def kind_of(thing: Any) -> str:
    """What something is, with its article: the class A, of type int."""
    word = f"class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__
    return f"the {word}" if isinstance(thing, type) else f"of type {word}"
