"""Task -> search -> graded tree: the one place where a gold answer meets the search's result, in
training only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chat.teachers import LEDGERS, build_teachers, build_terminal_checker, is_remote, open_remote
from ..config.load import Config
from ..config.refusals import refuse_conflicts
from ..engine.protocol import Teacher, ValueFunction, Verifier
from ..errors import ConfigError, RequestError, RewardError
from ..live import StopAsked
from ..mcts.driver import Search
from ..mcts.seeds import derive_seed
from ..policy.proposals import policy_of
from ..policy.verifiers import Product
from ..problems.load import check_gold
from ..problems.registry import check_worlds, open_source, reading_of, source_of
from ..problems.step_checks import Calculator
from ..rewards.custom import open_reward
from ..rewards.perplexity import Perplexity
from ..rewards.terminal import finished_earns_one, make_evaluate
from ..rewards.turns import TurnPolicy
from ..tree.arena import ROOT, Tree
from ..tree.extract import trajectories
from ..tree.graded import FAILED, FAILED_REWARD, GradedTree
from ..types import Cost, JsonObject, Task
from .earned import Earned, Searches

if TYPE_CHECKING:
    import torch

    from ..policy.student import Student

ERROR_RATE = 0.2  # how often the scripted teacher's likely-right step is wrong


class Collector(Earned):
    """Training searches with the current student.

    Args:
        student: the policy that searches.
        config: `search`, `rewards`, `teachers` and `train` decide the trees.
        method: what learns from them.
        perplexity: PRE under the frozen student, or None for HRE alone.
        stop: True ends every tree with what it has.
    """

    def __init__(
        self,
        student: Student,
        config: Config,
        method: Searches,
        perplexity: Perplexity | None,
        stop: StopAsked = lambda: False,
    ) -> None:
        super().__init__(config, method)
        self.student, self.perplexity, self.stop = student, perplexity, stop
        self.value: ValueFunction | None = None
        if config.search.value is not None:
            # Here, because torch takes seconds to load and a search actor without a model does
            # without it.
            from ..policy.critic import load_value

            self.value = load_value(Path(config.search.value), student, config)
        self.rule: Verifier = Calculator()  # `train.groups: verified`
        self.custom = open_reward(config.rewards, config.teachers)
        self.remote = open_remote(config) if is_remote(config) else None
        self.teachers = build_teachers(
            config, lambda: scripted_teacher(config), self.remote, student.opening
        )
        self.checker = build_terminal_checker(config, self.remote)
        valued = self.value is not None
        refuse_conflicts(config, "training searches", method=method, valued=valued)
        source = open_source(config)
        check_worlds(config, source, command="training searches", method=method)
        # A configuration that can't be searched with is refused now.
        self.worlds = set[str]()  # those whose ways back were checked
        self._build_driver(finished_earns_one, 1, self._proposals(source.worlds))

    def guide(self, layer: torch.nn.Linear) -> None:
        """Have V = sigmoid(layer(h)) of the student's own last states `h` `[H]` guide the searches
        from now on (`train.method: alphazero`).
        """
        from ..policy.critic import LEARNT, Critic, CriticVerifier

        engine = self.student.engine
        bias = 0.0 if layer.bias is None else float(layer.bias.detach())
        engine.set_value(layer.weight[0].detach(), bias)
        engine.facts["head"] = LEARNT
        value = CriticVerifier(Critic(engine, 1.0, {}, LEARNT), "value")
        self.rule = Product([Calculator(), value])

    def keep_ledgers(self, folder: Path) -> None:
        """Keep the teachers' ledgers in a run's folder; what earlier processes spent counts on."""
        asked = self.teachers if self.remote is None else self.remote
        if asked is not None:
            asked.ledgers.open(folder / LEDGERS)

    def describe_ledgers(self) -> JsonObject:
        """What the teachers and the terminal checker did and spent so far, for run.json."""
        teachers = () if self.teachers is None else self.teachers.teachers
        return {
            "teachers": {teacher.name: teacher.ledger.as_dict() for teacher in teachers},
            "terminal_checker": None if self.checker is None else self.checker.ledger.as_dict(),
            "teacher_budget": None if self.remote is None else self.remote.ledgers.as_dict(),
        }

    def session_costs(self) -> dict[str, Cost]:
        """What each remote teacher and the terminal checker took in this process."""
        return {} if self.remote is None else self.remote.ledgers.session

    async def collect(
        self, tasks: Sequence[tuple[str, Task]], seed: int
    ) -> AsyncIterator[GradedTree]:
        """Search (key, task) pairs; yields each tree as it ends. Those of zero variance are
        searched further before.
        """
        known = {task.problem.id: task for _, task in tasks}
        check_gold(known.values(), self.config.rewards)
        policy = self._proposals(any(source_of(task.problem).worlds for task in known.values()))
        turns = policy if isinstance(policy, TurnPolicy) else None
        if turns is not None:
            turns.tasks = known
        evaluate = make_evaluate(self.config.rewards, self.perplexity, known, self.custom, turns)
        chain = self.config.train.groups == "chain" and self.config.search.mode == "step"
        simulations = 1 if chain else self.config.search.simulations
        driver = self._build_driver(evaluate, simulations, policy)
        # A budget is a question's whole budget: nothing is added to it.
        limit = 0 if self.config.search.budget_tokens else self.config.train.requeue_limit
        gate = asyncio.Semaphore(self.config.search.concurrent)

        async def admit_question(key: str, task: Task) -> GradedTree:
            async with gate:
                try:
                    async with nullcontext() if turns is None else turns.episode(task.problem):
                        return await grow_tree(key, task)
                except RequestError as error:
                    # One question that doesn't fit, or that can't be rewarded, is recorded, and the
                    # run goes on.
                    why = FAILED_REWARD if isinstance(error, RewardError) else FAILED
                    return GradedTree(
                        key, task, Tree(), error.cost or Cost(), f"{why}{error}", True, 0
                    )

        async def grow_tree(key: str, task: Task) -> GradedTree:
            version = self.student.engine.version
            result = await driver.run(task.problem, derive_seed(seed, key))
            problem = task.problem
            saved, prompt = (
                result.saved,
                (
                    self.student.prompt_ids(problem.question)
                    if turns is None
                    else turns.prompt_ids(problem)
                ),
            )
            extensions, cost = 0, result.cost
            alike = flat_at_first = self.zero_variance(trajectories(result.tree))
            while alike and extensions < limit and result.ended_by == "simulations":
                extensions += 1
                if chain:
                    # A chain group grows at the root alone.
                    result.tree.expanded[ROOT] = False
                try:
                    result = await driver.run(
                        task.problem, derive_seed(seed, key, extensions), result.tree
                    )
                except RequestError as error:
                    cost.add(error.cost or Cost())
                    error.cost = cost
                    raise
                cost.add(result.cost)
                saved += result.saved
                alike = self.zero_variance(trajectories(result.tree))
            if self.perplexity is not None:
                self.perplexity.forget(task.problem)
            ended_by, tree = result.ended_by, result.tree
            return GradedTree(
                key, task, tree, cost, ended_by, flat_at_first, extensions, prompt, version, saved
            )

        async with nullcontext() if self.remote is None else self.remote.session():
            running = [asyncio.ensure_future(admit_question(key, task)) for key, task in tasks]
            try:
                for done in asyncio.as_completed(running):
                    yield await done
            finally:
                for task in running:
                    task.cancel()

    def _proposals(self, worlds: bool) -> Any:
        """What proposes steps or tokens: turns where there are worlds."""
        policy: Any = policy_of(self.student, self.config.search)
        if not worlds:
            return policy
        turns = TurnPolicy(self.student, self.config.search, policy)
        turns.checked = self.worlds
        return turns

    def _build_driver(self, evaluate: Any, simulations: int, policy: Any) -> Search:
        settings = self.config.search.with_values(simulations=simulations)
        parts: dict[str, Any] = {"value": self.value, "generating": settings.mode == "token"}
        if settings.mode == "step":
            parts |= {
                "advisor": self.teachers,
                "finished": None if self.checker is None else self.checker.is_finished,
            }
        if self.config.train.groups == "verified":
            parts = {"verifier": self.rule, "generating": True}
            if self.method.guided and not self.rule.guides:
                # Until the value has learnt: chains from the root, until one is right.
                settings = settings.with_values(select="restart")
        return Search(
            policy,
            evaluate,
            settings,
            stop=self.stop,
            grading=self.perplexity,
            reading=policy.reading if isinstance(policy, TurnPolicy) else reading_of,
            **parts,
        )


def scripted_teacher(config: Config) -> Teacher:
    """The offline teacher of the configured source. Raises ConfigError where it has none."""
    source = open_source(config)
    teacher = source.scripted_teacher(ERROR_RATE)
    if teacher is None:
        raise ConfigError(
            f"teachers.tier is {config.teachers.tier} and source {source.name} has no scripted "
            "teacher: choose another tier"
        )
    return teacher
