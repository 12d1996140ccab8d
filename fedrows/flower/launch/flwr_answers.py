"""Patches of a SuperNode: every message has an answer, and every answer is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fedrows.flower.launch.flwr_lookup import module_with


def answer_for_killed() -> None:
    """Has the SuperNode answer with an error for a ClientApp that failed without an answer.

    flwr does so only when the app has given no sign of life for a minute, and never for an app that
    was killed before it had its message or while it sent its answer.
    """
    what = "it cannot answer for apps that were killed"
    methods = ["InMemoryNodeState.finish_task", "InMemoryNodeState._store_error_replies"]
    names = [*methods, "CLIENT_APP_CRASHED_ERROR", "SubStatus", "TaskType"]
    module = module_with("flwr.supernode.nodestate.in_memory_nodestate", names, what)
    finish = module.InMemoryNodeState.finish_task
    objects = "flwr.supercore.inflatable.inflatable_object"
    walk = module_with(objects, ["iterate_object_tree"], what).iterate_object_tree

    def finish_task(self: Any, task_id: int, sub_status: str, details: str) -> bool:
        finished: bool = finish(self, task_id, sub_status, details)
        if finished and sub_status == module.SubStatus.FAILED:
            for task in self.get_tasks(task_ids=[task_id]):
                if task.type == module.TaskType.CLIENT_APP:
                    _drop_half_answers(self, task.run_id, walk)
                    self._store_error_replies({task.run_id}, module.CLIENT_APP_CRASHED_ERROR)
        return finished

    module.InMemoryNodeState.finish_task = finish_task


def _drop_half_answers(state: Any, run: int, walk: Callable[[Any], Iterable[Any]]) -> None:
    """Readies a run's messages for an error: each counts as read, and half answers go."""
    store = state.object_store
    with state.lock_msg_store:
        for name, entry in list(state.msg_store.items()):
            if entry.message.metadata.run_id != run:
                continue
            if not entry.message.metadata.reply_to_message_id:
                entry.is_retrieved = True  # or nobody would answer it
                continue
            parts = walk(store.get_object_tree(name)) if name in store else ()
            if name not in store or any(not store.get(part.object_id) for part in parts):
                store.delete(name)  # the SuperNode no longer waits for its parts
                if not entry.is_retrieved:
                    del state.msg_store[name]


def send_every_answer() -> None:
    """Has the SuperNode send an answer that is there although its message did not come whole.

    flwr gives such a message up, and keeps an answer that the ClientApp gave meanwhile. It sends
    that one when the next message comes, and every later answer one message too late as well.
    """
    what = "it cannot send answers in time"
    name = "flwr.supernode.start_client_internal"
    module = module_with(name, ["_pull_and_store_message"], what)
    pull = module._pull_and_store_message

    def pull_or_answer(*words: Any, state: Any, **more: Any) -> int | None:
        run: int | None = pull(*words, state=state, **more)
        if run is not None:
            return run
        with state.lock_msg_store:
            for entry in state.msg_store.values():
                if entry.message.metadata.reply_to_message_id and not entry.is_retrieved:
                    return int(entry.message.metadata.run_id)  # flwr sends what there is
        return None

    module._pull_and_store_message = pull_or_answer
