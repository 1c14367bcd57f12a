"""math-verify in a process of its own, with a time limit an answer: no LaTeX can hang or crash the run.

sympy can take hours or all memory over a few characters, and nothing inside its process ends that reliably. So the
process is killed when an answer takes too long, and the next answer gets a new one (about a second). What counts is the
process's own CPU time, where the system tells it: a verdict must not depend on what else the machine does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

TIMEOUT_SECONDS = 5.0
PATIENCE = 12  # times that long by the wall clock, for a process that hardly gets a turn
START_SECONDS = 600.0  # to import sympy takes 5 s of CPU; on a machine that is busy that has taken 95 s
REMEMBERED = 8192  # a search grades the same answers again and again
WORKER = f"{__package__}.math_worker"

CPU_CLOCK = 2  # CPUCLOCK_SCHED of Linux: in a clock's number, beside the inverted process id

UNPARSED, TIMED_OUT = "unparsed", "timed-out"


class Request(NamedTuple):
    """A gold answer in LaTeX and an answer; `found` is False for running text that an answer is yet to be found in."""

    gold: str
    answer: str
    found: bool


class MathVerifier:
    """The worker process, started at the first answer. Threads may share it: one batch at a time.

    Args:
        timeout: CPU seconds for one answer.

    `restarts` counts the workers after the first.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self.timeout = timeout
        self.restarts = -1
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._known: dict[Request, str] = {}
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id, or None while there is none."""
        return None if self._process is None else self._process.pid

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        """A verdict for each request: `correct`, `wrong`, `unparsed` or `timed-out`.

        An answer that the worker dies of twice (of memory, say) is unparsed.
        """
        with self._lock:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            asked = [one for one in dict.fromkeys(requests) if one not in self._known]
            self._known.update(zip(asked, self._verdicts(asked), strict=True))
            return [self._known[one] for one in requests]

    def close(self) -> None:
        """End the worker. The next call starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):  # what a broken pipe still held
                    pipe.close()  # type: ignore[union-attr]  # both are pipes
            self._process = None

    def _verdicts(self, requests: Sequence[Request]) -> list[str]:
        done: list[str] = []
        try:
            for request in requests:
                verdict = self._ask(request) or self._ask(request)  # it died, from outside perhaps: a second chance
                done.append(UNPARSED if verdict is None else verdict)
        finally:
            if len(done) < len(requests):
                self.close()  # interrupted: a verdict on its way would be taken for the next request's
        return done

    def _ask(self, request: Request) -> str | None:
        """The verdict of one request, None where the worker died of it."""
        if self._process is None:
            self._start()
        self._send(request)
        verdict = self._verdict()
        if verdict in (None, TIMED_OUT):
            self.close()
        return verdict

    def _start(self) -> None:
        alarm = math.ceil(PATIENCE * self.timeout) + 10
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(alarm)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lines = lines

        def read() -> None:
            with contextlib.suppress(ValueError, OSError):  # closed
                for line in process.stdout or ():
                    lines.put(line.strip())
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        if self._next(START_SECONDS) != "ready":
            self.close()
            raise RuntimeError(
                f"the math-verify worker doesn't start: run `{sys.executable} -m {WORKER} 20` to see why"
            )
        self.restarts += 1

    def _send(self, request: Request) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed where its verdict is read
            stdin = self._process.stdin  # type: ignore[union-attr]  # started
            stdin.write(json.dumps(request._asdict(), ensure_ascii=False) + "\n")  # type: ignore[union-attr]
            stdin.flush()  # type: ignore[union-attr]

    def _verdict(self) -> str | None:
        """The next verdict, as `_next` gives it: `timed-out` when the worker has computed for `timeout` seconds."""
        began, end = self._cpu_seconds(), time.monotonic() + PATIENCE * self.timeout
        left = self.timeout
        while (verdict := self._next(max(left, 0.01))) == TIMED_OUT:
            left = self.timeout - (self._cpu_seconds() - began)
            if left <= 0 or time.monotonic() >= end:
                break
        return verdict

    def _cpu_seconds(self) -> float:
        """The worker's CPU time so far; the wall clock where the system doesn't tell it."""
        if sys.platform == "linux" and self.pid is not None:
            with contextlib.suppress(OSError):  # it is dead
                return time.clock_gettime((~self.pid << 3) | CPU_CLOCK)
        return time.monotonic()

    def _next(self, seconds: float) -> str | None:
        """The worker's next line, `timed-out` after `seconds`, None where the worker is dead."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return TIMED_OUT


_shared: dict[int, MathVerifier] = {}


def shared_verifier() -> MathVerifier:
    """This process's verifier. A forked child gets its own: two processes can't read from one pipe."""
    pid = os.getpid()
    if pid not in _shared:
        _shared[pid] = MathVerifier()
        atexit.register(_shared[pid].close)
    return _shared[pid]
