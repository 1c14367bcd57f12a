"""Of a process: an event loop in a thread of its own, for clients that outlive their callers' event
loops, and its memory.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in a daemon thread, one event loop for all callers.

    The thread takes no SIGINT, and neither do the processes that it starts: a first Ctrl-C asks the
    program to end at its next safe place, which needs its engine until then.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        block_interrupts()
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`'s result; a caller that is cancelled cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`'s result, for callers without an event loop: they block."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def inside(self) -> bool:
        """True on the thread itself, which can't wait for its own work."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread; whatever runs in it is dropped."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if not self.inside():
                self._thread.join(timeout=5.0)


def block_interrupts() -> None:
    """No SIGINT for this thread, nor for the processes that it starts from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def freeze_loaded() -> None:
    """Keep what is loaded now out of garbage collections, which would walk the libraries' million
    objects again and again.

    It is thawed when the process ends: Triton 3.9 reports every frozen type as leaked.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
