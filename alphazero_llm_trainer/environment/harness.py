"""The verifiers harness: answers in this process, with one call or with tree search over calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import verifiers.v1 as vf
from pydantic import Field

from ..answering.searches import answer_search
from ..chat.ensemble import TeacherEnsemble
from ..chat.teachers import build_teachers, is_remote, open_remote
from ..config.load import Config, load_config, missing_key
from ..errors import AlphaZeroError, EngineError
from ..mcts.driver import SearchResult
from ..mcts.seeds import derive_seed
from ..types import JsonObject, Problem
from .argv import OUR_ID
from .calls import NEEDS, ChatCalls, ChatSteps
from .frozen import EMBEDDED_MODEL, shared_student

PROGRAM_FAILED = 1
# trace.info["skipped"] of a question that doesn't fit into the embedded student's context
TOO_LONG = "too long"
Tier = Literal["none", "free", "production", "local"]


class AlphaZeroHarnessConfig(vf.HarnessConfig):
    """`--env.agent.harness.*`"""

    id: vf.ID = OUR_ID
    search: Literal["none", "mcts"] = "none"
    """none: one call a question. mcts: tree search over reasoning steps, one call a sampled
    continuation. The server has to go on from an assistant's message (`continue_final_message`).
    """
    simulations: Annotated[int, Field(ge=1)] | None = None
    """Expansions a question (unset: search.simulations of training.yaml, 60)."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Sampled continuations an expansion (unset: search.samples of training.yaml, 4)."""
    tier: Tier = "none"
    """Teachers that propose steps in search. This package's environment sets it from
    `--env.taskset.tier`.
    """
    config_file: Path | None = None
    """A YAML file over training.yaml, likewise from `--env.taskset.config-file`."""

    def resolve(self, model: str) -> Config:
        """training.yaml with this harness's own settings on top. Likely-wrong proposals have no
        place in an answer.

        Where steps end and how long a response may be is as `model`'s entry of models.yaml says
        (its name's, or its path's); a model without one has the defaults of an entry.
        """
        own = {"simulations": self.simulations, "samples": self.samples}
        search = {name: value for name, value in own.items() if value is not None}
        entries = load_config(self.config_file).models
        name = "embedded" if model == EMBEDDED_MODEL else model
        student = next(
            (known for known, entry in entries.items() if name in (known, entry.path)), name
        )
        more = {} if student in entries else {"models": {student: {"path": student}}}
        settings = {
            "student": student,
            "search": search,
            "teachers": {"tier": self.tier, "wrong": 0},
        }
        return load_config(self.config_file, [more, settings])


class AlphaZeroHarness(vf.Harness[AlphaZeroHarnessConfig]):
    """Runs in verifiers' own process: no program, no container, no download."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Answer `data`'s prompt. A failed call gives a non-zero result, or the rollout would count
        as an answer.
        """
        # Not by `taskset_rules`: it imports what the verifiers that prime-rl pins may lack.
        system, prompt = self.resolve_prompt(data)
        sent: list[JsonObject] = []
        if system is not None:
            sent.append({"role": "system", "content": system})
        if isinstance(prompt, str):
            sent.append({"role": "user", "content": prompt})
        else:
            sent += [message.model_dump(exclude_none=True) for message in prompt or ()]
        answered = vf.ProgramResult(exit_code=0, stdout="", stderr="")
        if ctx.model == EMBEDDED_MODEL and shared_student().room(data.prompt_text) <= 0:
            # An empty response: it scores 0 and is counted, as in every evaluation.
            trace.info["skipped"] = TOO_LONG
            return answered
        # No time limit here: the rollout has its own (--env.agent.timeout.rollout).
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            chat = ChatCalls(session, endpoint, secret, ctx.model)
            try:
                if self.config.search == "none" and ctx.model == EMBEDDED_MODEL:
                    choice, _ = await chat(sent, temperature=0.0, return_token_ids=True)
                    # What is scored, as it was sampled.
                    trace.info["token_ids"] = choice["token_ids"]
                elif self.config.search == "none":
                    await chat(sent)
                elif ctx.client.type == "train":
                    raise EngineError(f"verifiers' training client closes every message; {NEEDS}")
                else:
                    problem = Problem(data.id or trace.id, data.prompt_text, "vf-eval")
                    trace.info["mcts"] = search_record(
                        await self._search_question(chat, sent, problem)
                    )
            except AlphaZeroError as error:
                return vf.ProgramResult(exit_code=PROGRAM_FAILED, stdout="", stderr=str(error))
        return answered

    async def _search_question(
        self, chat: ChatCalls, opening: list[JsonObject], problem: Problem
    ) -> SearchResult:
        """Search one question. It sees the prompt and never the task's gold."""
        config, teachers = self._settings(chat.model)
        frozen = shared_student() if chat.model == EMBEDDED_MODEL else None
        policy = ChatSteps(chat, opening, config.search, frozen)
        perplexity = None if frozen is None else frozen.perplexity
        search = answer_search(None, config, perplexity, policy=policy, advisor=teachers)
        return await search.run(problem, derive_seed(config.seed, problem.id))

    @cached_property
    def _settings(self) -> Callable[[str], tuple[Config, TeacherEnsemble | None]]:
        """`_read` of a model, once."""
        return cache(self._read)

    def _read(self, model: str) -> tuple[Config, TeacherEnsemble | None]:
        """The search's settings, and the teachers where their tier is named and its key is
        there.
        """
        config = self.config.resolve(model)
        taught = self.config.tier != "none" and missing_key(config, self.config.tier) is None
        remote = open_remote(config) if taught and is_remote(config) else None
        return config, build_teachers(config, _no_scripted_teacher, remote) if taught else None


def _no_scripted_teacher() -> Any:
    raise AssertionError("the scripted teacher is never used at evaluation")


def search_record(result: SearchResult) -> JsonObject:
    """What `trace.info["mcts"]` holds: the chosen path, which is what is scored, and the whole
    tree.

    Raises:
        EngineError: no response was finished, so there is nothing to score.
    """
    choice = result.choice
    if choice is None:
        raise EngineError(
            f"search ended by {result.ended_by} with no finished response: raise its budgets"
        )
    return {
        "response": choice.response,
        "token_ids": list(result.tree.sequence(choice.node)[0]),
        "answer": choice.answer,
        "steps": [step.text.rstrip("\n") for step in result.tree.steps(choice.node)],
        "directions": [result.tree.direction[node] for node in result.tree.path(choice.node)],
        "visits": choice.visits,
        "value": choice.value,
        "why": choice.why,
        "cost": result.cost.as_dict(),
        "ended_by": result.ended_by,
        "seed": result.seed,
        "tree": result.tree.to_dict(),
    }
