"""Devices whose check-in waits for work: one task looks into the store for all of them."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.concurrency import run_in_threadpool

from fedrows.flower.gateway.programs import CURRENT
from fedrows.flower.gateway.store import StoreError
from fedrows.flower.gateway.work import WorkStore

LONGEST = 25  # seconds that a check-in may wait
LOOK = 0.05  # seconds between two looks


class WaitingDevices:
    """Wakes a device when it has work, or when there is another program."""

    def __init__(self, work: WorkStore) -> None:
        self._work = work
        self._waiting: dict[str, tuple[asyncio.Event, str | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, device: str, seconds: float, program: str | None) -> bool:
        """Waits for news of a device; False if there were none in time."""
        if device in self._waiting:  # an earlier request of the same device need not wait on
            self._waiting[device][0].set()
        event = asyncio.Event()
        self._waiting[device] = event, program
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            if self._waiting.get(device, (None,))[0] is event:
                del self._waiting[device]
        return True

    async def _look(self) -> None:
        """Looks until nobody waits."""
        while self._waiting:
            with contextlib.suppress(StoreError):  # it is told to whoever asks next
                devices, program = await run_in_threadpool(self._news)
                for device, (event, known) in list(self._waiting.items()):
                    if device in devices or program != known:
                        event.set()
            await asyncio.sleep(LOOK)

    def _news(self) -> tuple[set[str], str | None]:
        return self._work.waiting_devices(), self._work.store.fact(CURRENT)
