"""How one choice of a request is found: a plain sample, or a method of `eval` whose best so far counts when time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..answers import extract
from ..config.load import Config
from ..engine.protocol import ValueFunction, Verifier
from ..eval.attempt import Attempt, MethodContext
from ..eval.methods import METHODS
from ..mcts.choose import Choice, choose, most_visited, voting
from ..mcts.metered import MeteredValue
from ..mcts.tree import ROOT, Tree
from ..rewards.perplexity import Perplexity
from ..rollouts import reading_of
from ..types import Problem
from .conversation import Conversation, MeteredVerifier
from .outcomes import DEADLINE, Outcome, chosen
from .requests import MCTS, Wanted
from .sampling import let_go, sampled
from .text import Token

PROGRESS_SECONDS = 0.25  # between the progress events of a streamed search

T = TypeVar("T")


class Told:
    """Who is told of an answer while it is found; nobody, unless it is streamed."""

    def text(self, text: str, tokens: list[Token] | None) -> None:
        """What is new of a sample."""

    def progress(self, event: dict[str, Any]) -> None:
        """How far a search is."""


@dataclass(slots=True)
class Answerer:
    """Answers prompts with one student; `verifier` judges searches (None: they vote), `value` guides those without one."""

    student: Any
    config: Config
    verifier: Verifier | None = None
    value: ValueFunction | None = None

    async def __call__(self, wanted: Wanted, seed: int, due: float | None, told: Told, name: str) -> Outcome:
        """One choice. `due` is when it has to be there, by the event loop's clock.

        Raises RequestError or ApiError for what can't be served, EngineError when the engine failed.
        """
        conversation = Conversation(self.student, wanted.prompt)
        if not wanted.searches:
            return await sampled(conversation, wanted, seed, due, self.config.search, told.text)
        tree, watching = Tree(), None
        if wanted.stream:
            watching = asyncio.ensure_future(self.progress(tree, conversation, told.progress))
        try:
            return await self.searched(conversation, wanted, Problem(name, wanted.question, "user"), seed, due, tree)
        finally:
            if watching is not None:
                watching.cancel()

    async def searched(
        self, conversation: Conversation, wanted: Wanted, problem: Problem, seed: int, due: float | None, tree: Tree
    ) -> Outcome:
        """The method's response, or at the deadline the best of what the tree has by then."""
        serve, method = self.config.serve, wanted.method
        budget = serve.budget_tokens if method.count is None else serve.max_budget_tokens
        budget = budget if wanted.budget_tokens is None else wanted.budget_tokens
        context = self.context(conversation, wanted, problem)
        simulations = wanted.simulations
        attempt = Attempt(
            context, problem, seed, budget, count=method.count, simulations=simulations, tree=tree
        )  # fmt: skip
        found = await in_time(answer(method.name, attempt), due, conversation)
        response, ended_by = (None, DEADLINE) if found is None else found
        choice = attempt.choice
        if choice is None and found is None:
            choice = self.best(tree, problem, context.config)
        elif response is not None and (choice is None or choice.response != response):
            ends = [leaf for leaf in tree.leaves() if tree.response(leaf) == response]
            node = ends[0] if ends else most_visited(tree)
            reward = tree.reward[node] or 0.0
            choice = Choice(node, response, extract(response), max(tree.N[node], 1), reward, ended_by)
        return chosen(conversation, wanted, seed, tree, choice, ended_by)

    def context(self, conversation: Conversation, wanted: Wanted, problem: Problem) -> MethodContext:
        """What the request's method draws from and is judged by."""
        settings = self.config.search
        changes: dict[str, Any] = {
            "max_tokens": settings.max_tokens if wanted.max_tokens is None else wanted.max_tokens,
            "temperature": settings.temperature if wanted.temperature is None else wanted.temperature,
        }
        if self.verifier is not None:
            changes["mode"] = "step"
        config = self.config.model_copy(update={"search": settings.model_copy(update=changes)})
        student: Any = conversation
        if self.verifier is not None:
            return MethodContext(student, MeteredVerifier(self.verifier, problem, conversation), config)
        value = None if self.value is None else MeteredValue(self.value, conversation.engine.cost)
        own = Perplexity(student, settings.max_tokens, own=True) if config.rewards.use_student_model else None
        return MethodContext(student, None, config, own, value)

    def best(self, tree: Tree, problem: Problem, config: Config) -> Choice | None:
        """The best finished response that a search has found so far."""
        rule = voting(config.search.choose, self.verifier is not None)
        decode: Callable[[Any], str] | None = self.student.decode if config.search.mode == "token" else None
        return choose(tree, rule, None, decode, reading_of(problem))

    async def progress(self, tree: Tree, conversation: Conversation, tell: Callable[[dict[str, Any]], None]) -> None:
        """Tell how far a search is, now and then."""
        told = -1
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            sampled_tokens = conversation.engine.sampled_tokens
            if sampled_tokens != told:
                told = sampled_tokens
                tell({"simulations": tree.N[ROOT], "nodes": len(tree), "sampled_tokens": told})


async def answer(name: str, attempt: Attempt) -> tuple[str | None, str]:
    """The answer of a method; a search that found none in its budget draws one response with what is left."""
    response, ended_by = await METHODS[name](attempt)
    if name == MCTS and response is None and attempt.choice is None and attempt.room(judged=False) > 0:
        response = (await attempt.draw(judged=False)).text
        ended_by = "tokens"
    return response, ended_by


async def in_time(work: Awaitable[T], due: float | None, conversation: Conversation) -> T | None:
    """What `work` gives, or None where it has not ended by `due`: what is there by then counts, and it is let go."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=None if due is None else max(due - asyncio.get_running_loop().time(), 0.0))
        if task.done():
            return task.result()
        conversation.engine.end()
        return None
    finally:
        let_go(task)
