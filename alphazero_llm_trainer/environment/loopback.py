"""The embedded student behind the app of `serve` on 127.0.0.1, for verifiers' own client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..serve.answering import Answerer
from ..serve.app import make_app
from ..serve.requests import Models
from ..serve.server import Server, listen, start
from ..serve.service import Service
from .frozen import EMBEDDED_MODEL, FrozenStudent

WAITING = 100_000  # verifiers bounds its rollouts itself


@dataclass(slots=True)
class Loopback:
    """One server on a free port, on the event loop that the student answers on; `url` is its base URL."""

    url: str
    server: Server
    running: asyncio.Task[None]

    @classmethod
    async def start(cls, frozen: FrozenStudent) -> Loopback:
        """A server of `frozen` that listens."""
        student = frozen.student
        settings = frozen.config.serve.model_copy(update={"queue": WAITING, "traces": 0})
        models = Models(EMBEDDED_MODEL, judged=False)
        service = Service(Answerer(student, frozen.config), models, settings)
        bound = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        return cls(url, *await start(make_app(service), bound, settings))

    async def close(self) -> None:
        """Stop listening."""
        self.server.should_exit = True
        await self.running
