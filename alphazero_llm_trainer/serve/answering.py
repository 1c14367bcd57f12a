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
from ..mcts.tree import Tree
from ..rewards.perplexity import Perplexity
from ..rollouts import reading_of
from ..types import Problem
from .conversation import Conversation, MeteredVerifier
from .outcomes import DEADLINE, Outcome, chosen
from .requests import MCTS, Wanted
from .sampling import let_go, sampled

T = TypeVar("T")


@dataclass(slots=True)
class Answerer:
    """Answers prompts with one student; `verifier` judges searches (None: they vote), `value` guides those without one."""

    student: Any
    config: Config
    verifier: Verifier | None = None
    value: ValueFunction | None = None

    async def __call__(
        self, wanted: Wanted, seed: int, due: float | None, tell: Callable[[str], None], name: str
    ) -> Outcome:
        """One choice, whose text is told as it comes: piece by piece of a sample, at once of a search.

        `due` is when it has to be there, by the event loop's clock. Raises RequestError or ApiError for what can't be
        served, EngineError when the engine failed.
        """
        conversation = Conversation(self.student, wanted.prompt)
        if not wanted.searches:
            return await sampled(conversation, wanted, seed, due, self.config.search, tell)
        outcome = await self.searched(conversation, wanted, Problem(name, wanted.question, "user"), seed, due)
        tell(outcome.text)
        return outcome

    async def searched(
        self, conversation: Conversation, wanted: Wanted, problem: Problem, seed: int, due: float | None
    ) -> Outcome:
        """The method's response, or at the deadline the best of what the tree has by then."""
        serve, method, body, tree = self.config.serve, wanted.method, wanted.body, Tree()
        budget = serve.budget_tokens if method.count is None else serve.max_budget_tokens
        budget = budget if body.budget_tokens is None else body.budget_tokens
        context = self.context(conversation, wanted, problem)
        attempt = Attempt(
            context, problem, seed, budget, count=method.count, simulations=body.simulations, tree=tree
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
        settings, body = self.config.search, wanted.body
        changes: dict[str, Any] = {
            "max_tokens": settings.max_tokens if body.most_tokens is None else body.most_tokens,
            "temperature": settings.temperature if body.temperature is None else body.temperature,
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
