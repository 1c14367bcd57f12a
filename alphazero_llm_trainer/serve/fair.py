"""Whose turn it is: a bounded queue that goes round its clients, so that no one of them keeps the others waiting."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .failures import ApiError

SMOOTHING = 0.1  # weight of the newest request in the mean duration


class FairQueue:
    """At most `live` requests at once, at most `waiting` in line; each freed place goes to the next client in turn.

    When the line is full, a newcomer takes the place of the newest request of the client that has most in line, unless
    that client is its own.
    """

    def __init__(self, live: int, waiting: int) -> None:
        self.places, self.length = live, waiting
        self.live, self.waiting = 0, 0
        self.seconds = 1.0  # mean duration of a request
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises ApiError (429) where the line is full."""
        await self._enter(client)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += SMOOTHING * (time.perf_counter() - began - self.seconds)
            self._leave()

    async def _enter(self, client: str) -> None:
        if self.live < self.places and not self.waiting:
            self.live += 1
            return
        if self.waiting >= self.length:
            self._make_room(client)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(place)
        self.waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave()  # the place came just before the client went
            else:
                self._drop(client, place)
            raise

    def _leave(self) -> None:
        self.live -= 1
        while self.waiting and self.live < self.places:
            client, line = next(iter(self._lines.items()))
            place = line.popleft()
            self.waiting -= 1
            if line:
                self._lines.move_to_end(client)
            else:
                del self._lines[client]
            if not place.done():
                self.live += 1
                place.set_result(None)

    def _drop(self, client: str, place: asyncio.Future[None]) -> None:
        line = self._lines.get(client)
        if line is not None and place in line:
            line.remove(place)
            self.waiting -= 1
            if not line:
                del self._lines[client]

    def _make_room(self, client: str) -> None:
        """Refuse this client, or the newest request of the one that has most in line."""
        own = len(self._lines.get(client, ()))
        greediest = max(self._lines, key=lambda name: len(self._lines[name]), default=client)
        if len(self._lines.get(greediest, ())) <= own + 1:
            raise self.full()
        place = self._lines[greediest][-1]
        self._drop(greediest, place)
        if not place.done():
            place.set_exception(self.full())

    def full(self) -> ApiError:
        """429 with the time after which the line should be shorter."""
        wait = math.ceil(self.seconds * (self.waiting + 1) / self.places)
        return ApiError(
            "too many requests are waiting: try again later",
            429,
            kind="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(min(max(wait, 1), 60))},
        )
