"""The process: one address, one event loop, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from ..config.sections import ServeConfig
from ..engine.protocol import GenerateRequest
from ..errors import ConfigError
from .connections import Complaints, Connection, Crowd, budget

LOOK_SECONDS = 0.02
BACKLOG = 1024  # connections that the kernel keeps for us
ACCEPTED = 32  # that are taken from it in one go: fewer than connections.SPARE_FILES, or a crowd takes every descriptor
GARBAGE = (20_000, 10, 10)  # gc.set_threshold: fewer and cheaper looks for cycles, which stop every request
ENDING_SECONDS = 2.0  # for requests that were cancelled to tell their clients
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """uvicorn's server; a signal asks it to end within `grace` seconds, a second Ctrl-C at once.

    Until requests under way have ended it goes on listening, so that new ones are told to come later (`on_end` is called
    first). `interrupted` tells that it was Ctrl-C.
    """

    def __init__(self, config: uvicorn.Config, grace: float, on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self.grace, self.on_end = grace, on_end
        self.interrupted = False
        self.ending: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the process isn't ended by the signal afterwards: it returns its own exit code."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.asked, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def asked(self, number: int) -> None:
        self.interrupted |= number == signal.SIGINT
        if self.ending is None:
            self.on_end()
            self.ending = asyncio.ensure_future(self.drain(number))
        elif number == signal.SIGINT:
            self.should_exit = self.force_exit = True

    async def drain(self, number: int) -> None:
        """Wait for the requests under way, then have uvicorn end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.grace
        while self.server_state.tasks and loop.time() < until and not self.force_exit:
            await asyncio.sleep(LOOK_SECONDS)
        self.config.timeout_graceful_shutdown = math.ceil(max(until - loop.time(), 0.0))
        self.handle_exit(number, None)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ConfigError where the address can't be had."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host is {host!r}, which is no address of this machine: use 127.0.0.1") from error
    # With the protocol in so many words, or asyncio leaves Nagle's delay on: 40 ms an answer.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"--port is {port}: {host} can't be listened on there ({error.strerror}); name another, or 0 for a free one"
        ) from error
    return bound


def serve(
    app: Any,
    bound: socket.socket,
    engine: Any,
    settings: ServeConfig,
    ready: Callable[[], None],
    on_end: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until a signal comes, then let requests under way end within `grace_seconds`; True when it was Ctrl-C.

    `on_end` is called when the signal comes. Raises ConfigError where another process listens there by now, or hardly any
    files may be opened.
    """
    crowd = Crowd(budget(settings.connections))
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(Connection, crowd=crowd)),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        loop="asyncio",
        timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
        timeout_keep_alive=75,
        backlog=ACCEPTED,
    )
    server = Server(config, settings.grace_seconds, on_end)
    try:
        bound.listen(BACKLOG)
    except OSError as error:  # another server bound it while this one loaded
        raise ConfigError(
            f"--port is {bound.getsockname()[1]} and can't be listened on ({error.strerror}): name another"
        ) from error

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(Complaints())
        # The first call compiles and pages in what the others find ready.
        await engine.generate([GenerateRequest((engine.eos_id,), max_new_tokens=1)])
        # What is loaded by now stays: looking through it for garbage would stop everything for 200 ms now and then.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        announcing = asyncio.ensure_future(announce(server, bound, ready))
        await server.serve(sockets=[bound])
        announcing.cancel()
        left = set(server.server_state.tasks)  # uvicorn cancelled them, but when Ctrl-C came twice
        if server.force_exit:
            for task in left:
                task.cancel()
        if left:
            await asyncio.wait(left, timeout=ENDING_SECONDS)

    asyncio.run(main())
    return server.interrupted


async def announce(server: Server, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Call `ready` as soon as the server accepts requests."""
    while not server.started:
        await asyncio.sleep(0.01)
    bound.listen(BACKLOG)
    ready()
