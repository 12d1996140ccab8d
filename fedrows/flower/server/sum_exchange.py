"""Protocols over the network: the server half runs here, a client half on every node.

Each request and each reply is a message, and a node that does not answer in time is a drop-out,
which the protocol bears or refuses by itself.

    sum → sum      one phase: a request to the node's half, and its reply
    sums → sums    phases of several protocols that run side by side
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from fedrows.errors import FedrowsError
from fedrows.flower.server.exchange import Exchange
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.sums import VECTORS
from fedrows.privacy.protocol import LastRequests, ServerHalf

R = TypeVar("R")


@dataclass
class SumWork:
    """What is added up, and the phase whose messages say so."""

    first: Mapping[str, Message]  # node → what it alone is told
    facts: dict[str, Any] = field(default_factory=dict)  # for all nodes
    parts: dict[str, bytes] = field(default_factory=dict)  # for all nodes
    phase: int = 0


@dataclass
class SumExchange:
    """One run of a protocol with some nodes."""

    parties: dict[int, str]  # number in the protocol → node
    facts: dict[str, Any]  # what both sides must know to exchange keys
    work: SumWork | None = None  # None: it is not known yet what is added up
    last: dict[str, Message] = field(default_factory=dict)  # what nodes said at the end
    bytes_down: int = 0
    bytes_up: int = 0
    phases: int = 0
    silent: dict[str, str] = field(default_factory=dict)  # node → why it was not heard
    lost: set[str] = field(default_factory=set)  # nodes without the state that was counted on
    declined: set[str] = field(default_factory=set)  # nodes that take no part any longer
    newest: list[object] = field(default_factory=list)  # names that nodes say they have begun

    def add_traffic_(self, exchange: Exchange) -> None:
        """Adds what was sent to the record of a round."""
        exchange.bytes_down += self.bytes_down
        exchange.bytes_up += self.bytes_up
        exchange.messages += self.phases * len(self.parties)  # at most


# Messages by node, and the nodes whose answers are waited for → answers, or why there are none.
Messages = tuple[Mapping[str, bytes], Collection[str]]
NodeAnswers = Mapping[str, "bytes | str"]
SendMessages = Callable[[Mapping[str, bytes], Collection[str]], NodeAnswers]
Steps = Generator[Messages, NodeAnswers, R]


class Lane(Generic[R]):
    """A protocol under way: the server half, and the requests that go out next."""

    def __init__(self, sum_: SumExchange, half: ServerHalf[R]) -> None:
        self.sum, self._half = sum_, half
        self.requests: dict[int, bytes] = {}
        self.done = False
        self._result: R | None = None
        self._error: FedrowsError | None = None
        self._go_on(lambda: next(half))

    @property
    def waits(self) -> bool:
        """Whether keys are exchanged, and it is not known yet what is added up."""
        return self.sum.work is None and self.sum.phases >= VECTORS

    def work_(self, work: SumWork) -> None:
        """Says what is added up, with the first messages or those that ask for vectors."""
        work.phase = VECTORS if self.sum.phases else 0
        self.sum.work = work

    @property
    def everybody(self) -> bool:
        """Whether there is something for each of its nodes, or each has ended it."""
        left = self.sum.last if self.done else self.requests
        return len(left) == len(self.sum.parties)

    def go_on(self, replies: dict[int, bytes]) -> dict[int, bytes]:
        """Takes the replies to the last requests; returns those that end the protocol, if any."""
        self.sum.phases += 1
        self._go_on(lambda: self._half.send(replies))
        if not isinstance(self.requests, LastRequests):
            return {}
        last = self.requests
        self._go_on(lambda: self._half.send({}))
        return last

    def _go_on(self, step: Callable[[], dict[int, bytes]]) -> None:
        self.requests = {}
        try:
            self.requests = step()
        except StopIteration as stop:
            self._result, self.done = stop.value, True
        except FedrowsError as error:
            self._error, self.done = error, True

    @property
    def result(self) -> R:
        """What the protocol came to; raises what the server half has raised."""
        if self._error is not None:
            raise self._error
        return cast(R, self._result)

    def message(self, number: int, request: bytes) -> bytes:
        """A request to a node's half."""
        sum_ = self.sum
        node = sum_.parties[number]
        facts = {name: sum_.facts[name] for name in ("sum", "run", "contract")}
        facts |= {"phase": sum_.phases, "party": number}
        parts = {"request": request}
        work = sum_.work if sum_.work is not None and sum_.work.phase == sum_.phases else None
        if sum_.phases == 0:
            facts |= {**sum_.facts, "ahead": work is None}
        if work is not None:
            facts |= work.facts
            parts |= work.parts
            if node in work.first:
                facts |= work.first[node].facts
                parts |= work.first[node].parts
        data = pack(Message("sum", facts, parts))
        sum_.bytes_down += len(data)
        return data


class SumCourse:
    """The messages of protocols side by side: a node gets one message for the phases of all.

    Requests that end a protocol travel with the next message to their node, or beside it.
    """

    def __init__(self) -> None:
        self._last: dict[str, list[bytes]] = {}  # node → requests that end a protocol

    def steps(
        self, lane: Lane[R], beside: Sequence[Lane[Any]] = (), then: Callable[[], object] = int
    ) -> Steps[R]:
        """The messages that run a protocol to its end, and others as far as they come meanwhile.

        The others wait where it has requests for some nodes only: no more nodes are disturbed.
        then: called after the first exchange, if the others go on with the second.
        """
        first = True
        while not lane.done:
            yield from self._exchange([lane, *(beside if lane.everybody else ())])
            if first and beside and lane.everybody:
                then()
            first = False
        return lane.result

    def last(self) -> Steps[None]:
        """The messages that tell nodes which protocols are over, if any are left to tell."""
        if self._last:
            yield from self._exchange([])

    def _exchange(self, lanes: Sequence[Lane[Any]]) -> Steps[None]:
        """One message to every node that a protocol has a request for, and their answers."""
        messages, self._last = self._last, {}
        lanes = [lane for lane in lanes if not (lane.done or lane.waits)]
        spoken: dict[str, list[Lane[Any]]] = {}  # node → protocols whose requests come last
        for lane in lanes:
            for number, request in lane.requests.items():
                node = lane.sum.parties[number]
                spoken.setdefault(node, []).append(lane)
                messages.setdefault(node, []).append(lane.message(number, request))
        awaited = spoken.keys() if lanes else messages.keys()
        answers = yield {node: _together(each) for node, each in messages.items()}, awaited
        parts = {
            node: _apart(answers[node], len(messages[node]))[-len(each) :]
            for node, each in spoken.items()
            if node in answers
        }
        for lane in lanes:
            own = {
                n: parts[n][each.index(lane)]
                for n, each in spoken.items()
                if lane in each and n in parts
            }
            for number, request in lane.go_on(_replies(lane.sum, own)).items():
                node = lane.sum.parties[number]
                self._last.setdefault(node, []).append(lane.message(number, request))


def carried(steps: Steps[R], send: SendMessages) -> R:
    """What a course comes to, when its messages are sent and answers waited for each time."""
    try:
        messages, awaited = next(steps)
        while True:
            messages, awaited = steps.send(send(messages, awaited))
    except StopIteration as stop:
        return cast(R, stop.value)


def _together(messages: Sequence[bytes]) -> bytes:
    """Several messages about sums as one."""
    if len(messages) == 1:
        return messages[0]
    facts = {name: unpack(messages[0]).facts[name] for name in ("run", "contract")}
    return pack(Message("sums", facts, {str(i): message for i, message in enumerate(messages)}))


def _apart(answer: bytes | str, count: int) -> list[bytes | str]:
    """The answers to each of several messages that were sent as one."""
    if count == 1 or isinstance(answer, str):
        return [answer] * count
    try:
        message = unpack(answer)
    except WireError as error:
        return [str(error)] * count
    if message.kind != "sums":  # it answers none of them
        return [answer] * count
    return [message.parts.get(str(i), "it answers something else") for i in range(count)]


def _replies(sum_: SumExchange, answers: Mapping[str, bytes | str]) -> dict[int, bytes]:
    """What the nodes' halves have replied; whoever has nothing to say is missing."""
    replies = {}
    for number, node in sum_.parties.items():
        answer = answers.get(node)
        if answer is None:
            continue
        if isinstance(answer, str):
            sum_.silent.setdefault(node, answer)
            continue
        sum_.bytes_up += len(answer)
        try:
            message = unpack(answer)
        except WireError as error:
            sum_.silent[node] = str(error)
            continue
        if message.kind != "sum" or message.facts.get("sum") != sum_.facts["sum"]:
            sum_.silent[node] = str(message.facts.get("why", "it answers something else"))[:300]
            sum_.newest.append(message.facts.get("newest"))
            sum_.lost |= {node} if message.kind == "state-lost" else set()
            sum_.declined |= {node} if message.kind == "declined" else set()
            continue
        if "reply" in message.parts:
            replies[number] = message.parts["reply"]
        else:
            sum_.last[node] = message
    return replies
