"""A private fleet that is not waited for: clients in groups, and each group's updates as one sum.

    form       some clients of idle nodes become a group, and the union of their rows is found
    ready      the nodes have said which rows they want; they get them as the model is now
    collect    what the nodes made of them has come in as one secure sum: the group's mean

Several groups are under way at once, each with nodes of its own, and end in any order. A group is a
cohort that is fixed when it is formed: its sums have names of their own, which are bound into all
that its nodes sign, and a node that drops out is borne as in any sum. All clients of a group read
the same model, so the server knows how stale its mean is without seeing a single update.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.fleet import Traffic
from fedrows.flower.server.fleet import AWAY, LOOK, POLL, FlowerRound
from fedrows.flower.server.node_records import LATE
from fedrows.flower.server.private_sums import PrivateSumFleet, UnitedRows
from fedrows.flower.server.registry import RegisteredClient
from fedrows.flower.server.round_sums import Hosts, RoundUnion
from fedrows.flower.server.sum_exchange import Lane, Messages, NodeAnswers, SumCourse, SumExchange
from fedrows.flower.server.unwaited_fleet import LEFT, UnwaitedFleet
from fedrows.flower.server.update_log import BufferedUpdate
from fedrows.flower.server.uploads import ClientUpdate
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.ring import Coding, RangeError
from fedrows.rows.params import Submodels

NO_UNION = "its node did not answer in the union"
FAILED = "the secure sum of its group failed"


def nobody() -> Upload:
    """An upload that nobody's update is in."""
    none = torch.ones(0, dtype=torch.float64)
    return Upload(none.long(), Submodels({}, {}, {}), none, {}, None)


@dataclass(eq=False)
class Group:
    """Clients whose updates become one sum, and how far it is."""

    round: int  # the step before which it was formed
    members: list[RegisteredClient]  # as they were registered then
    nodes: dict[str, tuple[int, int]]  # address and version of each node, as they were then
    sum: SumExchange  # the one that is under way
    course: Generator[Messages | None, Any, None] | None = None
    united: UnitedRows | None = None  # once the union is found
    waiting: dict[str, str] = field(default_factory=dict)  # message id → node
    answers: dict[str, bytes | str] = field(default_factory=dict)  # to the last messages
    until: float = 0.0  # when nodes that have not answered are given up
    is_ready: bool = False  # whether it waits for the rows of the model

    @property
    def busy(self) -> list[str]:
        """The nodes that are at work for it."""
        return [name for name in self.nodes if name not in self.sum.silent]


@dataclass(frozen=True, eq=False)
class GroupStart:
    """The rows of a group, as the model was when its nodes began to train."""

    start: Submodels
    began: int  # the step before which that was
    cohort: Tensor  # the clients' numbers (K,)
    hosts: Hosts
    read: dict[str, Tensor]  # how often the union's rows had been moved, by table
    coding: Coding | NoisyCoding


class GroupFleet(UnwaitedFleet, PrivateSumFleet):
    """The clients of all nodes, of which the server learns a sum for every group."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.groups: list[Group] = []  # under way
        self.recounts = False  # whether heat is to be counted anew, when no group is under way
        self.unused = 0  # means that no step has used yet
        self._means: list[BufferedUpdate] = []  # that have come in
        self._opening: tuple[Group, Hosts] | None = None
        self._seen: tuple[int, Collection[int]] = (0, ())  # what `recounts` was worked out from
        self._asked, self._down, self._up = 0, 0.0, 0.0  # clients, and bytes of their sums so far

    @property
    def under_way(self) -> dict[str, int]:
        """How many clients of each node are in a group."""
        busy = {name for group in self.groups for name in group.busy}
        counts = dict.fromkeys(sorted(busy), 0)
        for group in self.groups:
            for client in group.members:
                if client.node in group.busy:
                    counts[client.node] += 1
        return counts

    @property
    def least(self) -> int:
        """Whatever a secure sum has opened is enough for a step."""
        return 1

    @property
    def is_any_ready(self) -> bool:
        """Whether a group waits for the rows of the model."""
        return any(group.is_ready for group in self.groups)

    def _look(self) -> None:
        super()._look()
        seen = self.registry.version, self._connected
        if seen != self._seen:
            self._seen, self.recounts = seen, self._may_recount()

    def gather(self) -> None:
        """Takes in nodes; heat is counted anew, if it has to be, when no group is under way."""
        super().gather()
        if self.recounts and not self.groups:
            self._recount()
            self.recounts = False

    def _is_here(self, node: str) -> bool:
        return super()._is_here(node) and node in self._peers

    def exceeds(self, number: int) -> str:
        """Why no step must be made; nothing while there are groups that have paid for theirs."""
        return "" if self.groups or self.unused else super().exceeds(number)

    def may_form(self, number: int) -> bool:
        """Whether another group spends no more privacy than there is."""
        return not super().exceeds(number)

    def traffic_of(self, clients: int) -> Traffic:
        """What the sums of so many clients have weighed so far."""
        share = clients / max(self._asked, 1)
        return Traffic(self._down * share, self._up * share)

    def nodes_of(self, cohort: Tensor) -> int:
        """On how many nodes some clients are."""
        return len(self._hosts(cohort))

    def form(self, number: int, cohort: Tensor) -> None:
        """Makes a group of some clients, and asks their nodes for the union of their rows."""
        hosts, exchange = self._hosts(cohort), self.exchange(number)
        exchange.asked, self._asked = exchange.asked + len(cohort), self._asked + len(cohort)
        union_ = self._asking(self._new_union(number, cohort, hosts))
        nodes = {name: self._state_of(name) for name in hosts}
        members = [self.registry.clients[int(client)] for client in cohort]
        group = Group(number, members, nodes, union_.lane.sum)
        group.course = self._course(group, union_)
        self.groups.append(group)
        self._go_on(group, None)

    def _state_of(self, node: str) -> tuple[int, int]:
        """Where a node is, and of which version; (0, 0) if it has left."""
        known = self.registry.nodes.get(node)
        return (0, 0) if known is None else (known.address, known.version)

    def ready(self) -> Tensor:
        """The clients of a group whose rows are known; none if there is no such group.

        They are those whose nodes have answered in the union, and are as they were.
        """
        numbers = self.numbers()
        while self.is_any_ready:
            group = next(x for x in self.groups if x.is_ready)
            assert group.united is not None, "its union is found"
            same = {n for n in group.united.asked if self._state_of(n) == group.nodes[n]}
            stay = [
                client
                for client in group.members
                if client.node in same and self._is_here(client.node)
            ]
            gone = [client for client in group.members if client not in stay]
            for client in gone:
                self._drop(client, NO_UNION if client.node not in group.united.asked else LEFT)
            group.members, hosts = stay, dict[str, list[int]]()
            group.nodes = {client.node: group.nodes[client.node] for client in stay}
            for position, client in enumerate(stay):
                hosts.setdefault(client.node, []).append(position)
            if len(hosts) >= self.fewest_nodes:
                self._opening = group, hosts
                return torch.tensor([numbers[client.node, client.name] for client in stay])
            self._end(group, f"{len(hosts)} nodes are too few")
        return torch.zeros(0, dtype=torch.int64)

    def open_round(self, round_: Round) -> GroupRound:
        """The rows that the nodes of the group that `ready` has named want."""
        assert self._opening is not None, "a group is ready"
        (group, hosts), self._opening = self._opening, None
        assert group.united is not None, "its union is found"
        index = self._index_of(group.united.asked, hosts, len(round_.cohort))
        return GroupRound(self, round_, index, group, hosts)

    def begin_sum(self, opened: GroupRound, start: Submodels) -> None:
        """Sends the rows of a group to its nodes, and waits for nothing."""
        group, cohort = opened.group, opened.round.cohort
        assert group.united is not None, "its union is found"
        union_ = self.space.by_table(group.united.places)
        read = {t: moves[torch.from_numpy(union_[t])] for t, moves in self.moves.items()}
        coding = self._coding(cohort, opened.hosts)  # a range that no word can hold ends the run
        number = opened.round.number
        self._go_on(group, GroupStart(start, number, cohort, opened.hosts, read, coding))

    def collect(self, step: int, wait: bool) -> list[BufferedUpdate]:
        """The means of the groups that have come to their end; each is on the disk."""
        exchange, since = self.exchange(step), time.perf_counter()
        sent = [group for group in self.groups if not group.is_ready]
        if wait and all(group.waiting for group in sent):
            left = min((group.until for group in sent), default=0.0) - time.monotonic()
            if sent:
                self.transport.wait(max(min(left, LOOK), 0.0))
            else:
                time.sleep(POLL)
        exchange.add_seconds_("wait", time.perf_counter() - since)
        since = time.perf_counter()
        ids = {message_id: group for group in sent for message_id in group.waiting}
        for message_id, answer in (self.transport.receive(list(ids)) if ids else {}).items():
            group = ids[message_id]
            self._take(group, message_id, answer)
        for group in sent:
            self._give_up_late(group)
            if not group.waiting:
                self._go_on(group, group.answers)
        exchange.add_seconds_("check", time.perf_counter() - since)
        means, self._means = self._means, []
        return means

    def _take(self, group: Group, message_id: str, answer: bytes | str) -> None:
        """Takes in the answer of a node."""
        node = group.waiting.pop(message_id)
        group.answers[node] = answer
        self._heard(group.nodes[node][0], answer)

    def _give_up_late(self, group: Group) -> None:
        """Waits no longer for nodes that have left, or have taken too long."""
        late = group.until <= time.monotonic()
        for message_id, node in list(group.waiting.items()):
            if self._state_of(node)[0] != group.nodes[node][0]:
                del group.waiting[message_id]
                group.answers[node] = LEFT
            elif late:
                self._take(group, message_id, LATE)

    def _go_on(self, group: Group, event: NodeAnswers | GroupStart | None) -> None:
        """Takes a group to its next messages, or to its end."""
        assert group.course is not None, "it has begun"
        group.is_ready = False
        try:
            asked = group.course.send(event)
        except StopIteration:
            self.groups.remove(group)
        except (ProtocolError, PlanError, RangeError) as error:
            self._end(group, str(error))
        else:
            group.is_ready = asked is None
            if asked is not None:
                self._post(group, *asked)

    def _post(self, group: Group, messages: Mapping[str, bytes], awaited: Collection[str]) -> None:
        """Sends a group's messages."""
        seconds = self.contract.options.timeout
        names = {group.nodes[node][0]: node for node in messages}
        sent = {a: messages[n] for a, n in names.items() if self._state_of(n)[0] == a}
        accepted = self.transport.send(sent, seconds, group.round)
        group.answers = dict.fromkeys(awaited, AWAY)
        group.waiting = {x: names[a] for x, a in accepted.items() if names[a] in awaited}
        group.until = time.monotonic() + seconds

    def _course(self, group: Group, union_: RoundUnion) -> Generator[Messages | None, Any, None]:
        """All that a group does: yields messages, and takes answers; None asks for a GroupStart."""
        course, update = SumCourse(), self._begin_update(group.round, union_.hosts)
        united = yield from self._noting(course, union_.lane, [update.lane])
        keys = self._keys(union_.lane.sum)
        group.united = UnitedRows(union_.lane.sum, united, union_.asked(keys, united))
        start = yield None
        agreed = self._agree(
            group.round, group.united, start.cohort, start.hosts, start.start, start.coding, update
        )
        group.sum = agreed.update.lane.sum
        result = yield from self._noting(course, agreed.update.lane, [])
        inside, places, mean = self._mean_from(agreed, result)
        upload = self._pseudo_upload(start.cohort[places], mean)
        if mean is None or not len(upload.clients):
            raise ProtocolError(f"nothing was opened ({self._why_nothing(agreed, result)})")
        self.answers |= dict.fromkeys(inside, "")
        for client in group.members:
            if client.node not in inside:
                self._drop(
                    client, group.sum.silent.get(client.node, "it dropped out of the secure sum")
                )
        of = self.space.by_table(united)
        read = {
            table: counts[np.searchsorted(of[table], mean.rows[table][0].numpy())]
            for table, counts in start.read.items()
        }
        members = tuple(
            (client.node, client.name) for client in group.members if client.node in inside
        )
        arrived = BufferedUpdate(
            "",
            str(group.sum.facts["sum"]),
            agreed.tag,
            start.began,
            self.log.next_sequence(),
            mean.weight,
            ClientUpdate({"update": upload.update}, 1.0, None, mean.loss),
            read,
            members,
        )
        self.log.accept([arrived])
        self._means.append(arrived)
        yield from course.last()

    def _noting(
        self, course: SumCourse, lane: Lane[Any], beside: list[Lane[Any]]
    ) -> Generator[Messages, NodeAnswers, Any]:
        """The steps of a sum; what it took, and what its nodes said beside it, is noted."""
        try:
            return (yield from course.steps(lane, beside))
        finally:
            for each in (lane, *beside):
                self._take_note_(each.sum)
            if self.last is not None:
                lane.sum.add_traffic_(self.last)
            self._down, self._up = self._down + lane.sum.bytes_down, self._up + lane.sum.bytes_up

    def _end(self, group: Group, why: str) -> None:
        """Gives a group up."""
        assert self.last is not None, "a step is under way"
        reason = why.rstrip(".")
        self._log(f"Step {self.last.round}: there is no secure sum of a group: {reason}.")
        for client in group.members:
            self._drop(client, FAILED)
        self.groups.remove(group)

    def _drop(self, client: RegisteredClient, why: str) -> None:
        """Takes note of a client whose work brings nothing."""
        assert self.last is not None, "a step is under way"
        self.answers[client.node] = why
        self.last.drop_(why, [client.name])


@dataclass
class GroupRound(FlowerRound):
    """A group that gets its rows."""

    fleet: GroupFleet
    group: Group
    hosts: Hosts

    @property
    def traffic(self) -> Traffic:
        """What as many clients of the run have weighed so far."""
        return self.fleet.traffic_of(len(self.round.cohort))

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        self.fleet.begin_sum(self, start)
        return nobody()
