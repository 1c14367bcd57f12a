"""One client's connection: the time its headers may take, its place among all connections, and a half-closed one's answer.

uvicorn closes connections that wait for their next request. This adds what it leaves open: those that send nothing, or their
headers byte by byte, or don't read their answer, and how many there may be.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import time
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..errors import ConfigError

HEADER_SECONDS = 10.0  # from a connection, or the first byte of its next request, to the end of the headers
HEADER_BYTES = 64 << 10
WRITE_SECONDS = 60.0  # that a client may leave what it was sent unread
PROBE_SECONDS = (0.05, 5.0)  # after a half-close, and then again and again
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"  # what every client of HTTP/1.1 reads over (RFC 9110, 15.2)
SPARE_FILES = 64  # descriptors that are no connection's: the journal, what the engine opens, threads
LEAST = 8
QUIET_SECONDS = 60.0  # between two lines about a full table of descriptors

log = logging.getLogger(__name__)


def budget(asked: int) -> int:
    """How many connections there may be: `asked`, or fewer where the process may not open as many files.

    Raises the process's own limit as far as it may. Raises ConfigError where hardly any are left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else SPARE_FILES
    needed = asked + taken + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = asked if soft == resource.RLIM_INFINITY else min(asked, soft - taken - SPARE_FILES)
    if most < LEAST:
        raise ConfigError(
            f"this process may open {soft} files, which leaves {max(most, 0)} for clients: raise ulimit -n"
        )
    return most


class Crowd:
    """All connections of a server: at most `most`. Those in `idle` have no whole request under way, the oldest first: they
    are silent, or their request's body is still to come."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.idle: dict[Connection, None] = {}


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol of a connection with limits on time, bytes and number.

    Where all places are taken, a newcomer takes that of the connection that has been idle for the longest time, so that
    nobody can hold the places by doing nothing; where none is idle it is refused with 503.
    """

    def __init__(self, *args: Any, crowd: Crowd, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.crowd = crowd
        self.head_bytes, self.half_closed = 0, False
        self.timers: dict[str, asyncio.TimerHandle] = {}

    # -- time --------------------------------------------------------------------------------------------------------

    def start(self, name: str, seconds: float, late: Any) -> None:
        """Call `late` after `seconds` unless `stop(name)` comes first."""
        if name not in self.timers:
            self.timers[name] = self.loop.call_later(seconds, late)

    def stop(self, name: str) -> None:
        if (timer := self.timers.pop(name, None)) is not None:
            timer.cancel()

    def headers_late(self) -> None:
        """The headers didn't come in time; a client that sent none learns nothing, because it asked nothing."""
        if self.head_bytes:
            self.refuse("408 Request Timeout", f"the headers didn't come within {HEADER_SECONDS:g} seconds")
        self.transport.close()

    def refuse(self, status: str, why: str) -> None:
        """Answer outside of any request, and close."""
        body = f'{{"error": {{"message": "{why}", "type": "server_error", "param": null, "code": null}}}}'
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        retry = "retry-after: 1\r\n" if status.startswith("503") else ""
        self.transport.write(f"{head}{retry}connection: close\r\n\r\n{body}".encode())
        self.transport.close()

    # -- what asyncio calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.crowd.most:
            longest = next(iter(self.crowd.idle), None)
            if longest is None:
                self.refuse("503 Service Unavailable", "too many connections: try again later")
                return
            del self.crowd.idle[longest]
            longest.transport.abort()  # now, or its descriptor is not free in time
        self.crowd.idle[self] = None
        self.start("headers", HEADER_SECONDS, self.headers_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.idle.pop(self, None)
        for name in list(self.timers):
            self.stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self.busy:
            self.head_bytes += len(data)
            self.start("headers", HEADER_SECONDS, self.headers_late)
        super().data_received(data)
        self.look()
        if not self.busy and self.head_bytes > HEADER_BYTES and not self.transport.is_closing():
            self.refuse("431 Request Header Fields Too Large", f"the headers have more than {HEADER_BYTES} bytes")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.head_bytes = 0
        self.look()
        if self.half_closed and not self.busy:
            self.transport.close()

    def eof_received(self) -> bool | None:
        """The client sends no more. It may wait for its answer all the same, or be gone: an interim response tells, which
        a client that is gone refuses."""
        if not self.busy or self.scope is None or self.scope.get("http_version") != "1.1":
            return None
        self.half_closed = True
        self.probe(0)
        return True

    def probe(self, number: int) -> None:
        """Write what fails where nobody is; an answer that is being written needs none."""
        self.timers.pop("probe", None)
        if not self.busy or self.transport.is_closing():
            return
        if not self.cycle.response_started:
            self.transport.write(INTERIM)
        seconds = PROBE_SECONDS[min(number, len(PROBE_SECONDS) - 1)]
        self.start("probe", seconds, lambda: self.probe(number + 1))

    def pause_writing(self) -> None:
        super().pause_writing()
        self.start("unread", WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop("unread")

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request, whose headers have come, waits for its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def look(self) -> None:
        """Keep `Crowd.idle` and the headers' time as `busy` says."""
        if self.busy:
            self.stop("headers")
        if self.busy and not self.cycle.more_body:
            self.crowd.idle.pop(self, None)
        elif not self.transport.is_closing():
            self.crowd.idle.setdefault(self, None)


class Complaints:
    """asyncio's exception handler: a table of descriptors that is full is told once a minute, not a thousand times a second."""

    def __init__(self) -> None:
        self.told = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "out of system resource" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif time.monotonic() - self.told > QUIET_SECONDS:
            self.told = time.monotonic()
            log.warning("no file descriptor is left for another client (%s): raise ulimit -n", context.get("exception"))
