"""How late the event loop is: deadlines are brought forward by that, so that a busy server keeps them."""

from __future__ import annotations

import asyncio

TICK = 0.05  # seconds
DECAY = 0.9  # of the largest delay, a tick


class Lag:
    """`seconds` is the largest recent delay of the running event loop, halved every third of a second."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._watching: asyncio.Task[None] | None = None

    def early(self, deadline: float) -> float:
        """How much earlier than `deadline` (seconds) work has to stop: what reading the request and waking up to the end
        may each be late; half of it at most. Starts the watching."""
        loop = asyncio.get_running_loop()
        if self._watching is None or self._watching.done() or self._watching.get_loop() is not loop:
            self._watching = loop.create_task(self._watch())
        return min(2 * self.seconds, deadline / 2)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK
            await asyncio.sleep(TICK)
            self.seconds = max(loop.time() - due, DECAY * self.seconds, 0.0)
