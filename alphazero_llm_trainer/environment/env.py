"""The verifiers environment: one agent on one problem, with the embedded student behind
`embedded://student/v1`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING, Any, Self

import verifiers.v1 as vf
from pydantic import model_validator

from .argv import OUR_ID
from .frozen import EMBEDDED_MODEL, EMBEDDED_URL, FrozenStudent, shared_student
from .harness import AlphaZeroHarnessConfig
from .taskset import AlphaZeroTask, AlphaZeroTasksetConfig

if TYPE_CHECKING:
    from ..serve.listen import Inner

WAITING = 100_000  # verifiers bounds its rollouts itself

Served = tuple[str, "Inner", asyncio.Task[None]]  # a server's base URL, itself, and its running


class AlphaZeroEnvConfig(vf.SingleAgentEnvConfig):
    """verifiers' single-agent configuration with this package's harness, in this process."""

    agent: vf.AgentConfig = vf.AgentConfig(
        harness=AlphaZeroHarnessConfig(id=OUR_ID), runtime=vf.SubprocessConfig()
    )
    """The one seat: the model under evaluation."""

    @model_validator(mode="after")
    def _search_as_the_taskset_says(self) -> Self:
        """A harness can't see the taskset's configuration, so the teachers' tier and the YAML file
        are copied over.
        """
        harness, taskset = self.agent.harness, self.taskset
        if isinstance(harness, AlphaZeroHarnessConfig) and isinstance(
            taskset, AlphaZeroTasksetConfig
        ):
            update = {"tier": taskset.tier, "config_file": taskset.config_file}
            self.agent = self.agent.model_copy(
                update={"harness": harness.model_copy(update=update)}
            )
        return self


class AlphaZeroEnv(vf.SingleAgentEnv, vf.Env[AlphaZeroEnvConfig]):
    """One agent answers one problem.

    A client whose base URL is `embedded://student/v1` is the embedded student: it is loaded and
    served on 127.0.0.1 at the first episode that asks for it, inside this process and this event
    loop.
    """

    def __init__(self, config: AlphaZeroEnvConfig) -> None:
        if isinstance(config.taskset, AlphaZeroTasksetConfig):
            config.taskset.tell_the_task()  # an environment server makes its tasks of this alone
        super().__init__(config)
        self._starting = asyncio.Lock()
        self._served: Served | None = None

    async def run_episode(
        self, task: vf.Task, ctx: vf.ModelContext, **observers: Any
    ) -> vf.Episode:
        """verifiers' episode with `embedded://` resolved and perplexity switched on or off where it
        is left open.
        """
        embedded = ctx.client.base_url == EMBEDDED_URL
        if isinstance(task, AlphaZeroTask):
            if task.config.use_student_model is None:
                task = task.with_student(embedded)
            if not embedded:
                task.config.check_student(ctx.model)
        if not embedded:
            return await super().run_episode(task, ctx, **observers)
        client = vf.EvalClientConfig(
            base_url=await self._serve(), api_key_var="ALPHAZERO_LOOPBACK_KEY"
        )
        episode = await super().run_episode(
            task, dataclasses.replace(ctx, client=client), **observers
        )
        for trace in episode.traces:  # the port is gone when the run ends; its name stays true
            trace.agent.config = trace.agent.config.model_copy(update={"client": ctx.client})
        return episode

    async def stop(self) -> None:
        """Stop serving the embedded student."""
        if self._served is not None:
            _, server, running = self._served
            self._served = None
            server.should_exit = True
            await running

    async def _serve(self) -> str:
        """The base URL of the embedded student."""
        async with self._starting:
            if self._served is None:
                self._served = serve_student(shared_student())
                # verifiers' client honours proxy variables, and no proxy reaches this process's own
                # address.
                hosts = [*filter(None, os.environ.get("NO_PROXY", "").split(",")), "127.0.0.1"]
                os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))
            return self._served[0]


def serve_student(frozen: FrozenStudent) -> Served:
    """The app of `serve` over the embedded student, on a free port of 127.0.0.1 and the event loop
    that it answers on.
    """
    from ..serve.answerer import Answerer
    from ..serve.app import make_app
    from ..serve.listen import open_socket, start_server
    from ..serve.requests import Models
    from ..serve.service import Service

    settings = frozen.config.serve.with_values(queue=WAITING)
    models = Models(EMBEDDED_MODEL, judged=False)
    service = Service(Answerer(frozen.student, frozen.config), models, settings)
    bound = open_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    return url, *start_server(make_app(service), bound)
