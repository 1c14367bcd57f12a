"""The process: uvicorn with bounded connections, headers and patience, one event loop, and an
orderly end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..engine.background import freeze_loaded
from ..engine.protocol import GenerateRequest
from ..errors import ConfigError

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 896  # fewer where the process may open few files
FEWEST_CONNECTIONS = 8
SPARE_FILES = 96  # for what opens files later, and for `ACCEPTED` connections a few times over
BACKLOG = 1024  # connections that the kernel keeps until they are accepted
ACCEPTED = 8  # at once: their descriptors are taken before one of another connection is free again
GRACE_SECONDS = 20  # that requests under way have to end when the server is told to stop
KEPT_SECONDS = 75  # between two requests
# What a client is waited for, and for how many seconds at most: a request's head and its body;
# KEPT, its next request, which uvicorn itself waits for; READ, that it takes its answer.
KEPT, READ = "KEPT", "READ"
CLIENT_PATIENCE: dict[Any, float] = {
    h11.IDLE: 10,
    h11.SEND_BODY: 30,
    KEPT: KEPT_SECONDS + 10,
    READ: 60,
}


class PatientConnection(H11Protocol):
    """uvicorn's connection, which ends where its client is waited for longer than
    `CLIENT_PATIENCE`.

    Where all places are taken, a new connection takes the place of the one whose client is waited
    for the longest. Where none is, its request is answered 503 by uvicorn.

    Args:
        waiting: the server's connections whose clients are waited for, the longest first.
    """

    def __init__(self, *args: Any, waiting: dict[PatientConnection, None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting, self.stage = waiting, None
        self.patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency and self.waiting:
            next(iter(self.waiting)).end()
            warn_full(self.limit_concurrency)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.wait_for(None)

    def handle_events(self) -> None:
        super().handle_events()
        self.watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.watch()

    def shutdown(self) -> None:
        if self.stage is h11.SEND_BODY:  # the server ends, and nothing is under way here
            self.end()
        else:
            super().shutdown()

    def watch(self) -> None:
        """Tell what the client is waited for now."""
        if self.flow.write_paused or self.transport.is_closing():
            self.wait_for(READ)
        elif self.timeout_keep_alive_task is not None:
            self.wait_for(KEPT)
        else:
            self.wait_for(self.conn.their_state)

    def wait_for(self, stage: Any) -> None:
        """Measure time anew where `stage` is another one; nothing but those of PATIENCE is."""
        if stage is self.stage:
            return
        self.stage = stage
        self.waiting.pop(self, None)
        if self.patience is not None:
            self.patience.cancel()
        if stage in CLIENT_PATIENCE:
            self.waiting[self] = None
            self.patience = self.loop.call_later(CLIENT_PATIENCE[stage], self.end)

    def end(self) -> None:
        """Close now, whatever was sent or is to be sent."""
        self.connections.discard(self)
        self.wait_for(None)
        self.transport.abort()


@cache
def warn_full(most: int) -> None:
    """Log once that there are more than `most` connections."""
    log.warning(
        "%d connections are open, as many as there may be: a new one ends the one that has waited "
        "the longest for its client",
        most,
    )


class Server(uvicorn.Server):
    """uvicorn's server, which accepts few connections at once out of many that wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or ():
            bound.listen(BACKLOG)  # asyncio took ACCEPTED for both


class Inner(Server):
    """uvicorn's server within another program, whose signals it leaves alone."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket: clients that come while the student loads wait. Raises ConfigError where
    the address can't be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host} can't be listened on at --port {port} ({error}): "
            "name another, 0 for a free one"
        ) from error
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Nagle's delay is 40 ms an answer
    return bound


def connection_room() -> int:
    """The most connections that the process's open files leave room for. The soft limit of these
    becomes the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No system gives infinitely many.
    files = hard if hard != resource.RLIM_INFINITY else 2 * MOST_CONNECTIONS
    if soft != resource.RLIM_INFINITY:
        files = max(soft, files)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    opened = len(os.listdir("/dev/fd"))
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, files - opened - SPARE_FILES))


def uvicorn_config(app: Any) -> uvicorn.Config:
    """How uvicorn serves `app`. h11 refuses headers beyond 64 KiB; httptools has no such bound."""
    return uvicorn.Config(
        app,
        http=cast(Any, partial(PatientConnection, waiting={})),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        backlog=ACCEPTED,
        limit_concurrency=connection_room(),
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEPT_SECONDS,
    )


def start_server(app: Any, bound: socket.socket) -> tuple[Inner, asyncio.Task[None]]:
    """A server on this event loop, and its running; `server.should_exit = True` ends it."""
    server = Inner(uvicorn_config(app))
    return server, asyncio.create_task(server.serve(sockets=[bound]))


def serve_app(app: Any, bound: socket.socket, engine: Any, ready: Callable[[], None]) -> bool:
    """Serve until a signal comes, then let requests under way end within `GRACE_SECONDS`; True when
    it was Ctrl-C.
    """

    async def main() -> None:
        if engine.facts["backend"] != "openai":
            # The first call compiles and pages in what the others use.
            await engine.generate([GenerateRequest((engine.eos_id,), max_new_tokens=1)])
        freeze_loaded()  # a collection of it would stop everything for 200 ms now and then
        ready()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it again when all is over
        await Server(uvicorn_config(app)).serve(sockets=[bound])

    # A shell's background commands ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        return True
    return False
