"""The process: uvicorn with a bound on its connections, one event loop, and an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..config.sections import ServeConfig
from ..engine.background import freeze_loaded
from ..engine.protocol import GenerateRequest
from ..errors import ConfigError

BACKLOG = 1024  # connections that the kernel keeps for us
ACCEPTED = 8  # that are taken from it in one go: four such crowds can be open before the places of the first are free
SPARE_FILES = 128  # descriptors that are no connection's: the journal, what Python and the engine open, threads
IDLE_SECONDS = 75  # that a connection may wait for its next request
SIGNALS = (signal.SIGINT, signal.SIGTERM)

MOST_CONNECTIONS = 2048  # fewer where ulimit -n is small; a new one takes the place of the longest idle one


class Connection(H11Protocol):
    """uvicorn's connection. Where all of `most` places are taken, a newcomer takes that of the connection which has had no
    whole request under way, or has left its answer unread, for the longest time: nobody holds places by doing nothing.
    Where there is none, uvicorn's own limit answers 503.
    """

    def __init__(self, *args: Any, crowd: dict[Connection, None], most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.crowd, self.most = crowd, most  # all connections, the longest inactive ones first

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.crowd) >= self.most:
            inactive = next((one for one in self.crowd if one.inactive), None)
            if inactive is not None:
                del self.crowd[inactive]
                inactive.transport.abort()  # now, or its descriptor is not free in time
        self.crowd[self] = None

    @property
    def inactive(self) -> bool:
        """Whether no whole request waits for its answer, or nobody reads that."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.pop(self, None)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server ends: a request that isn't whole has nothing under way to wait for."""
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete:
            self.transport.abort()
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self in self.crowd:
            self.crowd[self] = self.crowd.pop(self)


class Server(uvicorn.Server):
    """uvicorn's server; signals are the caller's to handle."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def most_connections() -> int:
    """How many connections there may be: fewer than MOST_CONNECTIONS where the process may not open as many files.

    Raises the process's own limit as far as it may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(wanted, soft) - SPARE_FILES, 8)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: clients that come while the student loads wait. Raises ConfigError where the address can't be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host} can't be listened on at --port {port} ({error}): name another, 0 for a free one"
        ) from error
    bound.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # connections inherit it: Nagle's delay is 40 ms an answer
    return bound


async def start(app: Any, bound: socket.socket, settings: ServeConfig) -> tuple[Server, asyncio.Task[None]]:
    """A server of `app` that accepts requests, and its running; `server.should_exit = True` ends it."""
    most = most_connections()
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(Connection, crowd={}, most=most)),
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=most + 1,
        timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
        timeout_keep_alive=IDLE_SECONDS,
        backlog=ACCEPTED,
    )
    server = Server(config)
    running = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    bound.listen(BACKLOG)  # asyncio took ACCEPTED for both
    return server, running


def serve(app: Any, bound: socket.socket, engine: Any, settings: ServeConfig, ready: Callable[[], None]) -> bool:
    """Serve until a signal comes, then let requests under way end within `grace_seconds`; True when it was Ctrl-C."""
    interrupted = False

    async def main() -> None:
        # The first call compiles and pages in what the others find ready.
        await engine.generate([GenerateRequest((engine.eos_id,), max_new_tokens=1)])
        freeze_loaded()  # a collection of it would stop everything for 200 ms now and then
        server, running = await start(app, bound, settings)

        def asked(number: signal.Signals) -> None:
            nonlocal interrupted
            interrupted |= number == signal.SIGINT
            server.handle_exit(number, None)

        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, asked, number)
        ready()
        await running

    asyncio.run(main())
    return interrupted
