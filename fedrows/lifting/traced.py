"""A function of tensors, traced once per shape and replayed as the flat list of its operations.

What `vmap`, autograd and a module's own Python cost comes back in every call, and for a small model
it is most of a step. A trace has none of it: PyTorch's operations in order, the backward pass among
them, as one generated function.

    shapes       a trace serves one set of shapes; how many rows a block has changes from round to
                 round, though, so it is traced for two lengths, and every number that went with
                 the length is worked out from it in a replay
    what else    differs between those two traces is not a matter of shapes: such a function is not
                 the same in every call, and is called as it is
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Tensors = dict[str, Tensor]
Function = Callable[[Tensors], Sequence[Tensor]]

_FIRST = 8  # calls of one shape before it is traced: a trace takes as long as a few of them
_MOST = 32  # shapes that are traced; who has more pays for tracing and gets little
_STRIDE = 1_009  # rows that a block is longer by in the second trace, times 1, 2, …: a prime
_LOOKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_PLAIN = (int, str, type(None))
_BUILT_IN = (type(torch.mul), type(Tensor.mul))  # not written in Python
_RESULT = re.compile(r"\bv\d\w*")  # the name of a result


class Untraceable(Exception):
    """Why a function has to be called as it is."""


class Traced:
    """A function that is replayed from traces as soon as it has been called a few times.

    The tensors named in `loose` may change their length from call to call. `state` is whatever else
    the function depends on. `why` says what stood against a trace, if anything did, and
    `untraceable` is told so. Several threads may call at a time.
    """

    def __init__(
        self, function: Function, untraceable: Callable[[str], None] = lambda why: None
    ) -> None:
        self._function, self._untraceable = function, untraceable
        self._calls: Counter[Hashable] = Counter()
        self._replays: dict[Hashable, Function] = {}
        self._lock = threading.Lock()
        self.why: str | None = None

    def __call__(
        self, given: Tensors, loose: Collection[str], state: Hashable = None
    ) -> Sequence[Tensor]:
        if self.why is not None:
            return self._plain(given)
        shapes = [x.shape[1:] if n in loose else x.shape for n, x in given.items()]
        key = (state, *given, *shapes, *[x.dtype for x in given.values()])
        replay = self._replays.get(key)
        if replay is None:
            self._calls[key] += 1
            if self._calls[key] <= _FIRST or len(self._replays) >= _MOST:
                return self._plain(given)
            replay = self._trace(key, given, loose)
        return replay(given)

    def _plain(self, given: Tensors) -> Sequence[Tensor]:
        """What the function itself gives, which needs autograd."""
        with torch.inference_mode(False):
            return self._function({name: _recordable(x) for name, x in given.items()})

    def _trace(self, key: Hashable, given: Tensors, loose: Collection[str]) -> Function:
        """The replay of one shape, or the function itself, and why."""
        with self._lock:
            if key not in self._replays and self.why is None:
                try:
                    self._replays[key] = traced(self._function, given, loose)
                except Untraceable as error:
                    self.why = str(error)
                except Exception as error:  # of longer blocks, say
                    lines = str(error).strip().splitlines() or [""]
                    self.why = f"{type(error).__name__}: {lines[0]}"
                if self.why is not None:
                    self._untraceable(self.why)
            return self._replays.get(key, self._plain)


@torch.inference_mode(False)
def traced(function: Function, given: Tensors, loose: Collection[str]) -> Function:
    """The function's operations on tensors of these shapes, or an Untraceable error."""
    given = {name: _recordable(x) for name, x in given.items()}
    more = {name: _STRIDE * (1 + number) for number, name in enumerate(loose)}
    longer = {n: _longer(x, more[n]) if n in more else x for n, x in given.items()}
    short, long = _record(function, given), _record(function, longer)
    run = _Writer({more[n]: (i, len(given[n])) for i, n in enumerate(given) if n in more}).write(
        short, long
    )

    def replay(given: Tensors) -> Sequence[Tensor]:
        return run(*given.values())

    _check(replay(given), function(given))
    return replay


@dataclass
class _Operation:
    """A call of one of PyTorch's operations, with the very tensors that went in and came out."""

    call: Any
    function: Any  # what makes the call in a replay
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    @property
    def changes(self) -> bool:
        """Whether it writes into a tensor."""
        return bool(self.call._schema.is_mutable)

    @property
    def views(self) -> bool:
        """Whether it only looks at a tensor in another way."""
        returns = self.call._schema.returns
        alone = isinstance(self.result, Tensor) and self.result.numel() > 0
        return alone and not self.changes and returns[0].alias_info is not None


class _Recorder(TorchDispatchMode):
    """Writes down every operation, below `vmap` and autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch would load its compiler, for a second, only to keep it out of here

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if any(tag in func.tags for tag in _LOOKS) and not _by_place(func, args):
            raise Untraceable(f"{func.name()} looks at the values of a tensor")
        kwargs, function = kwargs or {}, _by_name(func)
        try:
            result = function(*args, **kwargs)
        except TypeError:  # it wants other arguments
            function = func._op
            result = function(*args, **kwargs)
        self.operations.append(_Operation(func, function, args, kwargs, result))
        return result


def _by_name(func: Any) -> Any:
    """PyTorch's function or method of an operation's name, which is faster to call than it."""
    space, name = func._schema.name.split("::")
    if space == "aten":
        for owner in (torch, Tensor):
            function = getattr(owner, name, None)
            if type(function) in _BUILT_IN:
                return function
    return func._op


def _by_place(func: Any, args: Sequence[Any]) -> bool:
    """Whether it only looks up places, not what a mask lets through."""
    masks = (torch.bool, torch.uint8)
    return func is torch.ops.aten.index.Tensor and all(
        x is None or x.dtype not in masks for x in args[1]
    )


@dataclass
class _Recording:
    inputs: list[Tensor]
    operations: list[_Operation]
    outputs: Sequence[Tensor]


def _record(function: Function, given: Tensors) -> _Recording:
    own = {name: x.detach() for name, x in given.items()}  # objects of their own
    recorder = _Recorder()
    with recorder:
        outputs = function(own)
    return _Recording(list(own.values()), recorder.operations, outputs)


@dataclass
class _Line:
    result: str
    call: str
    changes: bool


class _Writer:
    """Python source for two recordings of one function, whose inputs differ in length only.

    `short` and `long` are the two, and what stands at the same place in each of them.

    `loose` maps how much longer an input is in the second to its place and its length in the first.
    """

    def __init__(self, loose: Mapping[int, tuple[int, int]]) -> None:
        self.loose = loose
        self.names: tuple[dict[int, str], dict[int, str]] = ({}, {})  # by id, in each recording
        self.seen: tuple[dict[Hashable, str], dict[Hashable, str]] = ({}, {})  # by geometry
        self.around: dict[str, Any] = {}  # what the source refers to

    def write(self, short: _Recording, long: _Recording) -> Callable[..., Sequence[Tensor]]:
        """The function that was recorded."""
        arguments = [f"x{i}" for i in range(len(short.inputs))]
        for name, x, y in zip(arguments, short.inputs, long.inputs, strict=True):
            self._name(name, x, y)
        lines: list[_Line] = []
        for number, (a, b) in enumerate(zip_longest(short.operations, long.operations)):
            if a is None or b is None or a.call is not b.call:
                raise Untraceable("it does something else from call to call")
            if a.views and b.views and self._had(a.result, b.result):
                continue
            inputs = [self.source(x, y) for x, y in _pairs(a.args, b.args)]
            inputs += [f"{n}={self.source(x, b.kwargs.get(n))}" for n, x in a.kwargs.items()]
            self.around[f"f{number}"] = a.function
            result = self._results(f"v{number}", a.result, b.result)
            lines.append(_Line(result, f"f{number}({', '.join(inputs)})", a.changes))
        outputs = [self.source(x, y) for x, y in _pairs(short.outputs, long.outputs)]
        text = _text(arguments, lines, outputs)
        # All names in the text are made here, and no text of a user is in it.
        exec(compile(text, "<trace>", "exec"), self.around)
        return self.around["replay"]

    def source(self, short: Any, long: Any) -> str:
        """What stands for an argument."""
        if isinstance(short, Tensor):
            return self._tensor(short, long)
        if type(short) is not type(long):
            raise Untraceable("it does something else from call to call")
        if isinstance(short, list | tuple):
            inside = ", ".join(self.source(x, y) for x, y in _pairs(short, long))
            return f"[{inside}]"
        if type(short) is int and short != long:
            if long - short not in self.loose:
                raise Untraceable("its numbers change from call to call")
            number, length = self.loose[long - short]
            return f"x{number}.shape[0] + {short - length}"
        if short != long and repr(short) != repr(long):  # NaN is not NaN
            raise Untraceable("its numbers change from call to call")
        return repr(short) if isinstance(short, _PLAIN) else self._constant(short)

    def _tensor(self, short: Tensor, long: Any) -> str:
        names = self.names[0].get(id(short)), self.names[1].get(id(long))
        if names[0] != names[1]:
            raise Untraceable("it does something else from call to call")
        if names[0] is None:  # made elsewhere
            if short is not long and not (short.shape == long.shape and torch.equal(short, long)):
                raise Untraceable("its numbers change from call to call")
            return self._name(self._constant(short), short, long)
        return names[0]

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.around)}"
        self.around[name] = value
        return name

    def _name(self, name: str, short: Tensor, long: Tensor) -> str:
        self.names[0][id(short)] = self.names[1][id(long)] = name
        self.seen[0].setdefault(_geometry(short), name)
        self.seen[1].setdefault(_geometry(long), name)
        return name

    def _had(self, short: Tensor, long: Tensor) -> bool:
        """Whether there is a name for the very same view already, which then serves again."""
        name = self.seen[0].get(_geometry(short))
        if name is None or name != self.seen[1].get(_geometry(long)):
            return False
        self._name(name, short, long)
        return True

    def _results(self, name: str, short: Any, long: Any) -> str:
        """What a result is assigned to; an operation in place gives a tensor that has a name."""
        if isinstance(short, Tensor):
            return "_" if id(short) in self.names[0] else self._name(name, short, long)
        if short is None:
            return "_"
        if not isinstance(short, list | tuple):
            raise Untraceable("it looks at the values of a tensor")
        parts = enumerate(_pairs(short, long))
        inside = [self._results(f"{name}_{number}", x, y) for number, (x, y) in parts]
        return f"[{', '.join(inside)}]" if inside else "_"


def _pairs(short: Sequence[Any], long: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    if len(short) != len(long):
        raise Untraceable("it does something else from call to call")
    return zip(short, long, strict=True)


def _text(arguments: Sequence[str], lines: Sequence[_Line], outputs: Sequence[str]) -> str:
    """The source, without lines that nobody reads; a result is let go after its last use."""
    needed = set(_RESULT.findall(" ".join(outputs)))
    text = [f"    return [{', '.join(outputs)}]"]
    for line in reversed(lines):
        gives, reads = (set(_RESULT.findall(part)) for part in (line.result, line.call))
        if not line.changes and not gives & needed:
            continue
        done = sorted((reads | gives) - needed)
        text.append(f"    {line.result} = {line.call}" + "".join(f"; {n} = None" for n in done))
        needed |= reads
    return "\n".join([f"def replay({', '.join(arguments)}):", *reversed(text)])


def _geometry(x: Tensor) -> Hashable:
    """What tells views of one memory apart; all tensors of a recording are alive."""
    return x.data_ptr(), x.dtype, x.shape, x.stride()


def _recordable(x: Tensor) -> Tensor:
    """The tensor, or a copy of one that was made in inference mode: autograd refuses those."""
    return x.clone() if x.is_inference() else x


def _longer(x: Tensor, more: int) -> Tensor:
    return torch.cat([x, x.new_zeros(more, *x.shape[1:])])


def _check(replayed: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Raises an Untraceable error unless a replay gives what the function gives."""
    for got, right in zip(replayed, wanted, strict=True):
        near = torch.finfo(right.dtype).eps ** 0.5
        close = near * float(right.abs().max()) if right.numel() else 0.0
        if not torch.allclose(got, right, rtol=near, atol=close, equal_nan=True):
            raise Untraceable("its replay gives other numbers")
