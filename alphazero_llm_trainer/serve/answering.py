"""How one choice of a request is found: a plain sample, or a search whose best so far counts when the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..answers import extract
from ..collect import Perplexity, finished_earns_one
from ..config.load import Config
from ..engine.protocol import ValueFunction, Verifier
from ..eval.methods import answer_search
from ..mcts.choose import Choice, choose, most_visited, voting
from ..mcts.driver import Search
from ..mcts.tree import ROOT, WHOLE, Tree
from ..mcts.valued import MeteredValue
from ..mcts.verified import Judge
from ..policy.engine_steps import EngineSteps
from ..types import Cost, Direction, Problem, RewardParts, Step
from .conversation import Conversation, MeteredVerifier
from .failures import ApiError
from .names import MCTS, SAMPLE
from .outcomes import DEADLINE, Outcome, chosen
from .plain_sample import Tell, let_go, sampled
from .token_text import ShortTexts
from .wanted import Prompt, Wanted

T = TypeVar("T")


@dataclass(slots=True)
class Stepwise:
    """What a method outside `search` is given: it draws with `student` within `budget` tokens and grows `tree`.

    `response` and its `node` are the best so far, which counts when the time is over before the method returns.
    """

    student: Conversation
    verifier: Verifier
    config: Config
    problem: Problem
    seed: int
    budget: int
    tree: Tree
    response: str | None = None
    node: int | None = None


# Returns the response (None: it has none) and what ended it.
StepwiseMethod = Callable[[Stepwise], Awaitable[tuple[str | None, str]]]


@dataclass(slots=True)
class Answerer:
    """Answers prompts with one student; `verifier` judges searches (None: they vote), `value` guides those without one."""

    student: Any
    config: Config
    verifier: Verifier | None = None
    value: ValueFunction | None = None
    stepwise: Mapping[str, StepwiseMethod] = field(default_factory=dict)
    decode: ShortTexts = field(init=False)

    def __post_init__(self) -> None:
        self.decode = ShortTexts(self.student.decode)

    async def __call__(
        self, wanted: Wanted, prompt: Prompt, index: int, seed: int, due: float | None, tell: Tell, name: str
    ) -> Outcome:
        """One choice. `due` is when it has to be there, by the event loop's clock; `tell` takes text and progress.

        Raises RequestError or ApiError for what can't be served, EngineError when the engine failed.
        """
        conversation = Conversation(self.student, prompt.token_ids)
        if wanted.method.name == SAMPLE:
            longest = self.config.serve.max_tokens
            return await sampled(conversation, wanted, index, seed, due, longest, self.decode, tell)
        problem = Problem(name, prompt.question, "user")
        watching = None
        tree = Tree()
        if wanted.stream:
            watching = asyncio.ensure_future(
                self.progress(tree, conversation, index, tell, self.voting(wanted.method.name))
            )
        try:
            if wanted.method.name in self.stepwise:
                return await self.by_steps(conversation, wanted, problem, seed, due, tree)
            return await self.searched(conversation, wanted, problem, seed, due, tree, index)
        finally:
            if watching is not None:
                watching.cancel()

    async def searched(
        self,
        conversation: Conversation,
        wanted: Wanted,
        problem: Problem,
        seed: int,
        due: float | None,
        tree: Tree,
        index: int,
    ) -> Outcome:
        """The search's choice, or at the deadline the best of what the tree has by then."""
        search = self.search(conversation, wanted, problem)
        result = await in_time(search.run(problem, seed, tree), due, conversation)
        cost, budget = conversation.engine.cost, search.settings.budget_tokens
        if result is not None and len(tree) == 1 and budget is not None:
            left = budget - cost.sampled_tokens - cost.scored_tokens
            if left > 0:
                # Too little for a model to read the prompt: what is left is a plain response's.
                most = min(left, search.settings.max_tokens)
                plain = replace(wanted, max_tokens=most, stream=False)
                outcome = await sampled(conversation, plain, index, seed, due, most, self.decode, lambda told: None)
                outcome.tree, outcome.node, outcome.why = tree, ROOT, "a plain sample: the budget pays for no more"
                outcome.answer = extract(outcome.text)
                return outcome
        if result is None:
            choice, ended_by, saved = choose(tree, search.voting, None, search.text), DEADLINE, 0
        else:
            choice, ended_by, saved = result.choice, result.ended_by, result.saved
        outcome = chosen(conversation, wanted, seed, tree, choice, ended_by, search.text, self.decode)
        outcome.deadline_hit, outcome.saved = result is None, saved
        return outcome

    def search(self, conversation: Conversation, wanted: Wanted, problem: Problem) -> Search:
        """The search that a request asks for, within its budget."""
        student: Any = conversation
        context = conversation.engine.capabilities.max_context - len(conversation.prompt)
        settings = self.config.search
        changes: dict[str, Any] = {
            "budget_seconds": None,
            "max_tokens": min(settings.max_tokens if wanted.max_tokens is None else wanted.max_tokens, context),
            "temperature": settings.temperature if wanted.temperature is None else wanted.temperature,
        }
        method, verifier = wanted.method, None
        if self.verifier is not None:
            verifier = MeteredVerifier(self.verifier, problem, conversation)
        steps = {"mode": "step", "rollout": "sample", "rollout_weight": None, "value": None}
        if method.name != MCTS:
            # One simulation of the root: that many whole responses at once, sharing their prompt.
            changes |= steps | {"iterations": 1, "samples": method.samples, "budget_tokens": wanted.budget_tokens}
            changes |= {"choose": "value" if method.name == "best-of" else "vote"}
            settings = settings.model_copy(update=changes)
            policy = EngineSteps(student, settings.temperature)
            if method.name == "majority":
                return Search(policy, finished_earns_one, settings)
            if verifier is None:
                raise no_verifier(method.name)
            judged = Judged(verifier.judge)
            return Search(policy, judged, settings, grading=judged)
        budget = self.config.serve.budget_tokens if wanted.budget_tokens is None else wanted.budget_tokens
        changes["budget_tokens"] = budget
        if verifier is not None:
            changes |= steps | {"iterations": wanted.simulations or self.config.serve.max_simulations}
            settings = settings.model_copy(update=changes)
            policy = EngineSteps(student, settings.temperature)
            return Search(policy, finished_earns_one, settings, verifier=verifier)
        changes["iterations"] = wanted.simulations or settings.iterations
        config = self.config.model_copy(update={"search": settings.model_copy(update=changes)})
        perplexity = None
        if config.rewards.use_student_model:
            perplexity = Perplexity(student, config.search.max_tokens, own=True)
        value = None if self.value is None else MeteredValue(self.value, conversation.engine.cost)
        return answer_search(student, config, perplexity, value=value)

    async def by_steps(
        self,
        conversation: Conversation,
        wanted: Wanted,
        problem: Problem,
        seed: int,
        due: float | None,
        tree: Tree,
    ) -> Outcome:
        """A method that draws and repairs one chain at a time, under the verifier."""
        if self.verifier is None:
            raise no_verifier(str(wanted.method))
        search = self.config.search
        changes: dict[str, Any] = {
            "mode": "step",
            "max_tokens": search.max_tokens if wanted.max_tokens is None else wanted.max_tokens,
            "temperature": search.temperature if wanted.temperature is None else wanted.temperature,
        }
        config = self.config.model_copy(update={"search": search.model_copy(update=changes)})
        verifier = MeteredVerifier(self.verifier, problem, conversation)
        budget = self.config.serve.budget_tokens if wanted.budget_tokens is None else wanted.budget_tokens
        given = Stepwise(conversation, verifier, config, problem, seed, budget, tree)
        answer = await in_time(self.stepwise[wanted.method.name](given), due, conversation)
        response, ended_by = (given.response, DEADLINE) if answer is None else answer
        found = None
        if response is not None:
            node = given.node
            if node is None or response != given.response:
                ends = [leaf for leaf in tree.leaves() if tree.response(leaf) == response]
                node = ends[0] if ends else most_visited(tree)
            found = Choice(node, response, extract(response), max(tree.N[node], 1), tree.reward[node] or 0.0, ended_by)
        outcome = chosen(conversation, wanted, seed, tree, found, ended_by, None, self.decode)
        outcome.deadline_hit = answer is None
        return outcome

    def voting(self, method: str) -> str:
        """The rule of `choose` for what a method has so far."""
        if method == MCTS:
            return voting(self.config.search.choose, self.verifier is not None)
        return "value" if method == "best-of" else "vote"

    async def progress(self, tree: Tree, conversation: Conversation, index: int, tell: Tell, rule: str) -> None:
        """Tell how far a search is, now and then."""
        told = -1
        while True:
            await asyncio.sleep(self.config.serve.progress_seconds)
            sampled = conversation.engine.sampled_tokens
            if sampled != told:
                told = sampled
                best = choose(tree, rule) if self.config.search.mode == "step" else None
                event = {
                    "simulations": tree.N[ROOT],
                    "nodes": len(tree),
                    "sampled_tokens": sampled,
                    "answer": None if best is None else best.answer,
                }
                tell({"index": index, "progress": event})


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


@dataclass(frozen=True, slots=True)
class Judged:
    """A terminal reward without gold (`search.steps.Evaluate`, and its `Grading`): the verifier's total of a whole
    response; 0 where a limit cut it."""

    judge: Judge

    @property
    def again(self) -> bool:
        """A network reads each response; a rule is free."""
        return self.judge.verifier.computes

    async def open(self, problem: Problem, most: int | None) -> Cost | None:
        """A network reads the prompt first."""
        too_much = most is not None and self.judge.price(()) > most
        return None if too_much else Cost(scored_tokens=self.judge.open())

    async def __call__(
        self, problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        if verdict not in WHOLE:
            return RewardParts(total=0.0)
        cost = Cost(scored_tokens=self.judge.price(steps))
        return RewardParts(total=(await self.judge(steps)).total, cost=cost)


def no_verifier(method: str) -> ApiError:
    return ApiError(
        f"{method} needs a verifier and this server has none: use majority-N or mcts",
        param="model",
        code="unsupported_parameter",
    )
