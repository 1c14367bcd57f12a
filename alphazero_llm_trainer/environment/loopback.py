"""The embedded student behind the app of `serve` on 127.0.0.1, for verifiers' own client."""

from __future__ import annotations

import asyncio

from ..policy.adapters import fingerprint
from ..serve.answering import Answerer
from ..serve.app import make_app
from ..serve.requests import Models
from ..serve.server import Server, listen, start
from ..serve.service import Service
from ..serve.traces import Traces
from .frozen import EMBEDDED_MODEL, FrozenStudent

WAITING = 100_000  # verifiers bounds its rollouts itself


class Loopback:
    """One server on a free port. `start` and `close` belong to the event loop that the student answers on."""

    def __init__(self, frozen: FrozenStudent) -> None:
        self.frozen = frozen
        self.url = ""
        self._server: Server | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; afterwards `url` is the base URL, `/v1` included."""
        student = self.frozen.student
        settings = self.frozen.config.serve.model_copy(update={"queue": WAITING})
        answerer = Answerer(student, self.frozen.config)
        models = Models(EMBEDDED_MODEL, judged=False)
        service = Service(answerer, models, settings, fingerprint(student.model), Traces(0))
        bound = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        self._server, self._running = await start(make_app(service), bound, settings)

    async def close(self) -> None:
        """Stop listening. A second call does nothing."""
        if self._server is not None and self._running is not None:
            self._server.should_exit = True
            await self._running
            self._server = self._running = None
