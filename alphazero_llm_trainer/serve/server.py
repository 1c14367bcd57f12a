"""The process: uvicorn with bounded connections and headers, one event loop, and an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import uvicorn

from ..engine.background import freeze_loaded
from ..engine.protocol import GenerateRequest
from ..errors import ConfigError

MOST_CONNECTIONS = (
    896  # of the 1,024 files that a process may open; beyond them a client is answered 503
)
GRACE_SECONDS = 20  # that requests under way have to end when the server is told to stop


class Inner(uvicorn.Server):
    """uvicorn's server within another program, whose signals it leaves alone."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: clients that come while the student loads wait. Raises ConfigError where
    the address can't be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host} can't be listened on at --port {port} ({error}): name another, 0 for a free "
            "one"
        ) from error
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Nagle's delay is 40 ms an answer
    return bound


def configured(app: Any) -> uvicorn.Config:
    """How uvicorn serves `app`. h11 refuses headers beyond 64 KiB; httptools has no such bound."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=75,
    )


def start(app: Any, bound: socket.socket) -> tuple[Inner, asyncio.Task[None]]:
    """A server on this event loop, and its running; `server.should_exit = True` ends it."""
    server = Inner(configured(app))
    return server, asyncio.create_task(server.serve(sockets=[bound]))


def serve(app: Any, bound: socket.socket, engine: Any, ready: Callable[[], None]) -> bool:
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
        await uvicorn.Server(configured(app)).serve(sockets=[bound])

    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background commands ignore it
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        return True
    return False
