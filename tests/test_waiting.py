"""Nobody waits longer than needed: bells, held requests, and apps that were killed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, PushAppMessagesResponse
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedrows.flower.apps import _patience
from fedrows.flower.launch import flwr_answers, flwr_patches
from fedrows.flower.launch.bell import Bell
from fedrows.flower.launch.long_poll import ANSWER, PART, PULL, PUSH, LongPoll


def test_a_bell_is_heard_by_all_who_wait_and_by_who_comes_late(tmp_path: Path) -> None:
    ringer, one, other = (Bell(tmp_path / "bell") for _ in range(3))
    assert not one.wait(0)
    threading.Timer(0.05, ringer.ring).start()
    assert one.wait(30)
    assert other.wait(0)  # it was rung before
    assert not other.wait(0)
    assert other.wait(30, sooner=lambda: True)
    assert (tmp_path / "bell").stat().st_mode & 0o077 == 0


def test_without_a_bell_only_time_passes() -> None:
    Bell(None).ring()
    assert not Bell(None).wait(0.01)


class SuperLink:
    """Answers as a SuperLink does: one message for a node at a time, or none."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.asked = 0
        self.parts: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, answer = (await receive())["body"], b""
        if scope["path"] == PULL:
            self.asked += 1
            node = PullMessagesRequest.FromString(body).node.node_id
            if self.waiting.get(node, 0):
                self.waiting[node] -= 1
                answer = PullMessagesResponse(messages_list=[MessageProto()]).SerializeToString()
        elif scope["path"] == PUSH:
            answer = PushAppMessagesResponse(objects_to_push=self.parts).SerializeToString()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": answer})


async def ask(app: LongPoll, path: str, body: bytes, gone: bool = False) -> bytes:
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        if gone:
            return {"type": "http.disconnect"}
        await asyncio.sleep(600)
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    await app({"type": "http", "path": path}, receive, send)
    return b"".join(answer.get("body", b"") for answer in answers)


def pull(node: int) -> bytes:
    return PullMessagesRequest(node=Node(node_id=node)).SerializeToString()


def push(*nodes: int) -> bytes:
    messages = [MessageProto(metadata=Metadata(dst_node_id=node)) for node in nodes]
    return PushAppMessagesRequest(messages_list=messages).SerializeToString()


def test_a_node_is_answered_when_there_is_a_message_for_it(tmp_path: Path) -> None:
    async def go() -> None:
        link, bell = SuperLink(), Bell(tmp_path / "bell")
        app = LongPoll(link, bell, seconds=600)
        assert await ask(app, PULL, pull(1)) == b""  # nothing is known of it yet: asked at once
        held = asyncio.ensure_future(ask(app, PULL, pull(1)))
        await asyncio.sleep(0)
        await ask(app, PUSH, push(2))
        await asyncio.sleep(0.01)
        assert not held.done()  # that was another's
        link.waiting[1], link.parts = 2, ["a", "b"]
        await ask(app, PUSH, push(1, 1))
        await ask(app, PART, b"")
        await asyncio.sleep(0.01)
        assert not held.done()  # its message is not complete yet
        await ask(app, PART, b"")
        assert await asyncio.wait_for(held, 60)
        assert await asyncio.wait_for(ask(app, PULL, pull(1)), 60)  # a second one waits: not held
        assert link.asked == 3
        assert not bell.wait(0)
        await ask(app, ANSWER, b"")
        assert bell.wait(0)

    asyncio.run(go())


def test_a_request_is_not_held_for_ever_and_none_is_passed_on_for_who_has_gone() -> None:
    async def go() -> None:
        link = SuperLink()
        app = LongPoll(link, Bell(None), seconds=0.01)
        for _ in range(2):
            assert await asyncio.wait_for(ask(app, PULL, pull(1)), 60) == b""
        assert link.asked == 2
        app.seconds = 600
        await ask(app, PULL, pull(1), gone=True)  # its message would be lost
        assert link.asked == 2

    asyncio.run(go())


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> InMemoryNodeState:
    monkeypatch.setattr(InMemoryNodeState, "finish_task", InMemoryNodeState.finish_task)
    flwr_answers.answer_for_killed()
    for name, number in {"_run_id": 5, "_node_id": 1, "_task_id": 3}.items():
        monkeypatch.setattr(TaskIdentity, name, number, raising=False)
    node = InMemoryNodeState(ObjectStoreFactory().store())
    node.set_node_id(7)
    return node


def message_of(number: int) -> Message:
    content = RecordDict({"a": ConfigRecord({"b": number})})
    return named(Message(content, dst_node_id=7, message_type="train"))


def answer_to(message: Message) -> Message:
    return named(Message(RecordDict({"a": ConfigRecord({"b": b"long"})}), reply_to=message))


def named(message: Message) -> Message:
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@pytest.mark.parametrize("when", ["before it has its message", "at work", "while it answers"])
def test_a_node_answers_for_an_app_that_was_killed(state: InMemoryNodeState, when: str) -> None:
    message = message_of(1)
    task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=5, fab_hash="x")
    assert task is not None
    state.store_message(message)
    assert state.claim_task(task)
    state.activate_task(task)
    if when != "before it has its message":
        assert state.get_messages_legacy(run_ids=[5], is_reply=False, limit=1)
        state.record_message_processing_start(message.metadata.message_id)
    if when == "while it answers":
        answer = answer_to(message)
        session = state.start_session(5)
        state.store_message_and_object_tree(answer, get_object_tree(answer), session)
        assert len(get_all_nested_objects(answer)) > 1  # of which none was sent
    assert state.finish_task(task, "failed", "The app was killed by signal 9.")
    (reply,) = state.get_messages_legacy(is_reply=True)
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == message.metadata.message_id


@pytest.mark.parametrize("app", ["gave up", "had answered"])
def test_a_node_answers_in_time_after_a_message_that_came_in_part(
    state: InMemoryNodeState, monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    from flwr.supernode import start_client_internal as module

    monkeypatch.setattr(module, "_pull_and_store_message", module._pull_and_store_message)
    flwr_answers.send_every_answer()
    state.store_run(SimpleNamespace(run_id=5, fab_hash="x", primary_task_type="x"))  # type: ignore[arg-type]
    half, whole = message_of(1), message_of(2)
    sent: list[tuple[str, bool]] = []

    def pull(message: Message, pull_object: Any) -> int | None:
        return module._pull_and_store_message(
            state=state,
            object_store=state.object_store,
            node_config={},
            receive=lambda: (message, get_object_tree(message)),
            get_run=pytest.fail,  # type: ignore[arg-type]
            get_fab=pytest.fail,  # type: ignore[arg-type]
            pull_object=pull_object,
            confirm_message_received=lambda *_: None,
            trusted_entities=None,
        )

    def send(answer: Message, *_: Any) -> tuple[set[str], str]:
        sent.append((answer.metadata.reply_to_message_id, answer.has_error()))
        return set(), ""

    def turn(message: Message, pull_object: Any) -> None:  # of the SuperNode's loop
        if pull(message, pull_object) is not None:
            module._push_messages(state, state.object_store, send, pytest.fail)  # type: ignore[arg-type]

    one_at_a_time = threading.Lock()  # flwr pulls parts in threads

    def sender_died(*_: Any) -> bytes:
        late = len(sent) == 1  # a thread for a message that was given up; flwr waits for none
        with one_at_a_time:
            if not late and state.get_messages_legacy(is_reply=False):  # the ClientApp wants parts
                if app == "had answered":
                    module._insert_message(answer_to(half), state, state.object_store)
                elif app == "gave up":
                    (task,) = state.get_tasks(statuses=["pending"])
                    assert state.claim_task(task.task_id)
                    state.activate_task(task.task_id)
                    assert state.finish_task(task.task_id, "failed", "")
        raise ObjectPullError("x", "its sender died")

    def work(_: float) -> None:  # what the ClientApp does while the SuperNode waits for its answer
        module._insert_message(answer_to(whole), state, state.object_store)

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=work))
    parts = {name: part.deflate() for name, part in get_all_nested_objects(whole).items()}
    turn(half, sender_died)
    turn(whole, lambda _, name: parts[name])
    assert sent == [
        (half.metadata.message_id, app == "gave up"),
        (whole.metadata.message_id, False),
    ]
    app = "was killed before"
    assert pull(message_of(3), sender_died) is None  # nothing to send


def test_a_long_message_is_fetched_while_its_parts_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts that take 4 s each are a message; one that has stopped coming is none."""
    from flwr.supercore.inflatable import inflatable_utils as module

    def by_name(object_ids: list[str], pull_object_fn: Any, **more: Any) -> dict[str, bytes]:
        """As flwr's, in one thread and in a time that the test sets."""
        found = {}
        for name in object_ids:
            while name not in found:
                try:
                    found[name] = pull_object_fn(name)
                except module.ObjectUnavailableError:
                    now[0] += 0.5
        return found

    by_name.__kwdefaults__ = dict(module.pull_objects.__kwdefaults__ or {})
    now, there = [0.0], {"a": 4.0, "b": 8.0, "c": 12.0, "lost": 1e9}
    whole = SimpleNamespace(__kwdefaults__=dict(by_name.__kwdefaults__))
    monkeypatch.setattr(module, "pull_objects", by_name)
    monkeypatch.setattr(module, "pull_and_inflate_object_from_tree", whole)
    monkeypatch.setattr(flwr_patches, "time", SimpleNamespace(monotonic=lambda: now[0]))
    flwr_patches.pull_objects_sooner(5.0)

    def part(name: str) -> bytes:
        if now[0] < there[name]:
            raise module.ObjectUnavailableError(name)
        return name.encode()

    assert module.pull_objects(["a", "b", "c"], part) == {"a": b"a", "b": b"b", "c": b"c"}
    with pytest.raises(ObjectPullError, match="no part has come for 5 s"):
        module.pull_objects(["a", "lost"], part)
    assert now[0] < 30
    flwr_patches.pull_objects_sooner(1.0)  # in place of the other, not before it
    with pytest.raises(ObjectPullError, match="no part has come for 1 s"):
        module.pull_objects(["lost"], part)


@pytest.mark.parametrize(
    ("timeout", "patience"), [(1.0, 1.0), (8.0, 2.0), (120.0, 10.0), (1200.0, 100.0)]
)
def test_who_allows_slow_nodes_time_also_waits_longer_for_a_part(
    timeout: float, patience: float
) -> None:
    assert _patience(timeout) == patience


def test_an_executor_notices_at_once_that_an_app_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.supercore.superexec import run_superexec as module

    monkeypatch.setattr(module, "get_executor", module.get_executor)
    monkeypatch.setattr(module, "time", time)
    ended: list[tuple[Any, str]] = []
    flwr_patches.fork_tasks(
        lambda *_: time.sleep(60), lambda task, how: ended.append((task, how)), Bell(None)
    )
    executor = module.get_executor()  # type: ignore[call-arg]
    task = SimpleNamespace(
        task_type=TaskType.CLIENT_APP, runtime_api_address="x", token="y", insecure=True,
        root_certificates_path=None, parent_pid=1,
    )  # fmt: skip
    executor.launch(task)  # type: ignore[arg-type]
    assert not executor.has_ended()  # type: ignore[union-attr]
    (pid,) = executor.running  # type: ignore[union-attr]
    os.kill(pid, signal.SIGKILL)
    module.time.sleep(60)  # wakes up
    executor.reconcile()
    assert ended == [(task, "was killed by signal 9")]
