"""math-verify in a process of its own, with a time limit an answer: no LaTeX can hang or crash the
run.

sympy can take hours or all memory over a few characters, and nothing inside its process ends that
reliably. So the system kills the process that takes too long (`math_worker` sets the timers), and
the next answer gets a new one (about a second). What counts is the process's own CPU time: a
verdict must not depend on what else the machine does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

VERDICT_SECONDS = 5.0
REMEMBERED = 8192  # a search grades the same answers again and again
WORKER = f"{__package__}.math_worker"
OUT_OF_TIME = (-signal.SIGPROF, -signal.SIGALRM)  # what a worker ends by whose timer ran out
UNPARSED, TIMED_OUT = "unparsed", "timed-out"


class Request(NamedTuple):
    """A gold answer in LaTeX and an answer; `extracted` is False for running text that an answer is
    yet to be found in.
    """

    gold: str
    answer: str
    extracted: bool


class MathVerifier:
    """The worker process, started at the first answer. Threads may share it: one batch at a time.

    Args:
        timeout: CPU seconds for one answer.
    """

    def __init__(self, timeout: float = VERDICT_SECONDS) -> None:
        self.timeout = timeout
        self.process: subprocess.Popen[str] | None = None
        self._known: dict[Request, str] = {}
        self._lock = threading.Lock()

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        """A verdict for each request: `correct`, `wrong`, `unparsed` or `timed-out`.

        An answer that the worker dies of twice (of memory, say) is unparsed.
        """
        with self._lock:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            for request in requests:
                if request not in self._known:
                    self._known[request] = self._ask(request) or self._ask(request) or UNPARSED
            return [self._known[request] for request in requests]

    def close(self) -> None:
        """End the worker. The next call starts another."""
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(OSError):  # what a broken pipe still held
                self.process.communicate()
            self.process = None

    def _ask(self, request: Request) -> str | None:
        """The verdict of one request, None where the worker died of it."""
        verdict = None
        try:
            if self.process is None:
                self.process = self._start_worker()
            with contextlib.suppress(OSError):  # a dead worker is noticed where its verdict is read
                print(json.dumps(request._asdict()), file=self.process.stdin, flush=True)
            verdict = self.process.stdout.readline().strip()  # type: ignore[union-attr]  # a pipe
            if not verdict and self.process.wait() in OUT_OF_TIME:
                return TIMED_OUT
            return verdict or None
        finally:
            # It died, or the caller was interrupted: what comes late must be nobody's verdict.
            if not verdict:
                self.close()

    def _start_worker(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", WORKER, str(self.timeout)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        if process.stdout.readline() != "ready\n":  # type: ignore[union-attr]  # a pipe
            process.kill()
            raise RuntimeError(
                f"the math-verify worker doesn't start: run `{' '.join(command)}` to see why"
            )
        return process


_shared: dict[int, MathVerifier] = {}


def shared_verifier() -> MathVerifier:
    """This process's verifier. A forked child gets its own: two processes can't read from one
    pipe.
    """
    pid = os.getpid()
    if pid not in _shared:
        _shared[pid] = MathVerifier()
        atexit.register(_shared[pid].close)
    return _shared[pid]
