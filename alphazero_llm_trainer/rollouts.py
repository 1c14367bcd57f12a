"""Task -> search -> graded tree: the one place where a gold answer meets the search's result, in
training only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chat.remote import RemoteSteps, RemoteStudent
from .chat.teachers import LEDGERS, build_teachers, build_terminal_checker, is_remote, open_remote
from .config.load import Config
from .config.sections import SearchConfig
from .engine.protocol import Teacher, ValueFunction, Verifier
from .errors import ConfigError, DataError, RequestError, RewardError
from .mcts.choose import Reading
from .mcts.driver import Search, check_settings
from .mcts.expansion import Evaluate
from .mcts.extract import Trajectory, outcomes, trajectories
from .mcts.seeds import derive_seed
from .mcts.steps import Advisor, StepPolicy
from .mcts.tokens import TokenPolicy
from .mcts.tree import ROOT, Tree
from .policy.engine_steps import EngineSteps
from .policy.engine_tokens import EngineTokens
from .policy.verifiers import Product
from .problems.load import check_gold
from .problems.source import open_source, source_of
from .problems.step_checks import Calculator
from .rewards.custom import open_reward
from .rewards.perplexity import Perplexity
from .rewards.terminal import finished_earns_one, make_evaluate
from .types import Cost, Problem, Task

if TYPE_CHECKING:
    import torch

    from .policy.student import Student

FAILED = "failed: "  # how `GradedTree.ended_by` of a question without a tree begins
FAILED_REWARD = "failed reward: "  # and of one that the user's own reward ended


@dataclass
class GradedTree:
    """A finished training search: its key in the journal, the task, the tree, its cost and how it
    was extended.

    `flat_at_first` tells that all trajectories had earned the same before any extension;
    `extensions` counts the searches that were added (`train.requeue_limit`); `saved` counts the
    simulations that an adaptive budget left out. `prompt_ids` are the tokens before the tree's
    root, `policy_version` the engine's when the search began.
    """

    key: str
    task: Task
    tree: Tree
    cost: Cost
    ended_by: str
    flat_at_first: bool
    extensions: int
    prompt_ids: tuple[int, ...] = ()
    policy_version: int = 0
    saved: int = 0

    @cached_property
    def responses(self) -> list[Trajectory]:
        """The tree's distinct finished responses, extracted once: the tree is finished too."""
        return trajectories(self.tree)

    @property
    def failed_reward(self) -> str | None:
        """What the user's own reward did wrong, where that ended the question."""
        return (
            self.ended_by.removeprefix(FAILED_REWARD)
            if self.ended_by.startswith(FAILED_REWARD)
            else None
        )

    def record(self, **more: Any) -> dict[str, Any]:
        """The journal line."""
        problem = self.task.problem
        return {
            "key": self.key,
            "problem": {"id": problem.id, "question": problem.question, "source": problem.source},
            "flat_at_first": self.flat_at_first,
            "extensions": self.extensions,
            "ended_by": self.ended_by,
            "saved": self.saved,
            "policy_version": self.policy_version,
            "prompt_ids": list(self.prompt_ids),
            "cost": self.cost.as_dict(),
            **more,
            "tree": self.tree.to_dict(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], task: Task) -> GradedTree:
        """The tree of a journal line. Raises DataError when the line isn't a whole record."""
        try:
            return cls(
                record["key"],
                task,
                Tree.from_dict(record["tree"]),
                Cost(**record["cost"]),
                record["ended_by"],
                record["flat_at_first"],
                record["extensions"],
                tuple(record["prompt_ids"]),
                record["policy_version"],
                record["saved"],
            )
        except (KeyError, TypeError) as error:
            raise DataError(
                f"journal record {record.get('key')!r} lacks {error}: remove its line"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Searches:
    """What searches have to know of the method that learns from them.

    Args:
        supervised: it learns from responses as they are, whoever wrote them and when.
        ruled: under `train.groups: verified` it learns from right responses that the rule judged,
            and from nothing else.
        guided: a value that is trained with the policy says where to search (AlphaZero).
    """

    supervised: bool = False
    ruled: bool = False
    guided: bool = False


ERROR_RATE = 0.2  # how often the scripted teacher's likely-right step is wrong


class Earned:
    """What responses earned, in the currency of `train.reward`, and which of them count.

    Args:
        config: `train` and `rewards` decide it.
        method: what learns from the trees.
    """

    def __init__(self, config: Config, method: Searches) -> None:
        self.config, self.method = config, method
        self.combined = credits_combined(config)

    def reward(self, trajectory: Trajectory) -> float:
        """What a trajectory earned for credit: `train.reward` picks correctness alone or the
        combined reward.
        """
        return trajectory.reward if self.combined else float(trajectory.hre or 0.0)

    def node_values(self, tree: Tree) -> tuple[Sequence[int], Sequence[float]]:
        """For each node a count and the sum of what it earned, in the currency of `reward`: with
        `hre` the responses through it and how many of them were right, with `combined` its visits
        and their rewards.
        """
        return (tree.N, tree.W) if self.combined else outcomes(tree, correctness=True)

    def counted(self, responses: Sequence[Trajectory]) -> list[Trajectory]:
        """Those of a tree's responses that training learns from: GRPO and PPO leave a teacher's out
        (`train.teacher_rows`).
        """
        every = self.method.supervised or self.config.train.teacher_rows
        return [response for response in responses if every or response.student]

    def zero_variance(self, responses: Sequence[Trajectory]) -> bool:
        """True when the responses that training learns from all earned the same: no signal."""
        rewards = {round(self.reward(response), 9) for response in self.counted(responses)}
        return len(rewards) < 2


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
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(config, method)
        self.student, self.perplexity, self.stop = student, perplexity, stop
        self.value: ValueFunction | None = None
        if config.search.value is not None:
            # Here, because torch takes seconds to load and a search actor without a model does
            # without it.
            from .policy.critic import load_value

            self.value = load_value(Path(config.search.value), student, config)
        self.rule: Verifier = Calculator()  # `train.groups: verified`
        self.custom = open_reward(config.rewards, config.teachers)
        self.remote = open_remote(config) if is_remote(config) else None
        self.teachers = build_teachers(
            config, lambda: scripted_teacher(config), self.remote, student.opening
        )
        self.checker = build_terminal_checker(config, self.remote)
        check_collecting(config, method, self.value is not None)
        # A configuration that can't be searched with is refused now.
        self._search(finished_earns_one, 1)

    def guide(self, layer: torch.nn.Linear) -> None:
        """Have V = sigmoid(layer(h)) of the student's own last states `h` `[H]` guide the searches
        from now on (`train.method: alphazero`).
        """
        from .policy.critic import LEARNT, Critic, CriticVerifier

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

    def ledgers(self) -> dict[str, Any]:
        """What the teachers and the terminal checker did and spent so far, for run.json."""
        teachers = () if self.teachers is None else self.teachers.teachers
        return {
            "teachers": {teacher.name: teacher.ledger.as_dict() for teacher in teachers},
            "terminal_checker": None if self.checker is None else self.checker.ledger.as_dict(),
            "teacher_budget": None if self.remote is None else self.remote.ledgers.as_dict(),
        }

    def spent(self) -> dict[str, Cost]:
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
        evaluate = make_evaluate(self.config.rewards, self.perplexity, known, self.custom)
        chain = self.config.train.groups == "chain" and self.config.search.mode == "step"
        search = self._search(evaluate, 1 if chain else self.config.search.simulations)
        # A budget is a question's whole budget: nothing is added to it.
        limit = 0 if self.config.search.budget_tokens else self.config.train.requeue_limit
        gate = asyncio.Semaphore(self.config.search.concurrent)

        async def guarded(key: str, task: Task) -> GradedTree:
            async with gate:
                try:
                    return await searched(key, task)
                except RequestError as error:
                    # One question that doesn't fit, or that can't be rewarded, is recorded, and the
                    # run goes on.
                    why = FAILED_REWARD if isinstance(error, RewardError) else FAILED
                    return GradedTree(
                        key, task, Tree(), error.cost or Cost(), f"{why}{error}", True, 0
                    )

        async def searched(key: str, task: Task) -> GradedTree:
            version = self.student.engine.version
            result = await search.run(task.problem, derive_seed(seed, key))
            saved, prompt = result.saved, self.student.prompt_ids(task.problem.question)
            extensions, cost = 0, result.cost
            alike = flat_at_first = self.zero_variance(trajectories(result.tree))
            while alike and extensions < limit and result.ended_by == "simulations":
                extensions += 1
                if chain:
                    # A chain group grows at the root alone.
                    result.tree.expanded[ROOT] = False
                try:
                    result = await search.run(
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
            running = [asyncio.ensure_future(guarded(key, task)) for key, task in tasks]
            try:
                for done in asyncio.as_completed(running):
                    yield await done
            finally:
                for task in running:
                    task.cancel()

    def _search(self, evaluate: Any, simulations: int) -> Search:
        settings = self.config.search.changed(simulations=simulations)
        parts: dict[str, Any] = {"value": self.value, "generating": settings.mode == "token"}
        if settings.mode == "step":
            parts |= {
                "advisor": self.teachers,
                "finished": None if self.checker is None else self.checker.finished,
            }
        if self.config.train.groups == "verified":
            parts = {"verifier": self.rule, "generating": True}
            if self.method.guided and not self.rule.guides:
                # Until the value has learnt: chains from the root, until one is right.
                settings = settings.changed(select="restart")
        policy = policy_of(self.student, settings)
        return Search(
            policy,
            evaluate,
            settings,
            stop=self.stop,
            grading=self.perplexity,
            reading=reading_of,
            **parts,
        )


def credits_combined(config: Config) -> bool:
    """Whether credit is made of the combined reward, and not of correctness alone: rewards of the
    user's own are what a run is for, unless `train.reward` says otherwise, and PRE is where
    correctness has no weight.
    """
    train, rewards = config.train, config.rewards
    return train.reward == "combined" or (
        train.reward is None and (rewards.own or rewards.hre_weight == 0)
    )


def measures_perplexity(config: Config, method: Searches) -> bool:
    """Whether a training measures PRE: GRPO and PPO do where their advantages are made of it."""
    rewards = config.rewards
    if not rewards.use_student_model or rewards.pre_weight == 0:
        return False
    return method.supervised or credits_combined(config)


def check_collecting(config: Config, method: Searches, valued: bool) -> None:
    """Raise ConfigError for settings of training searches that contradict each other. `valued`:
    there is a value network.
    """
    train, mode = config.train, config.search.mode
    teachers = {
        "teachers.tier": config.teachers.tier != "none",
        "teachers.terminal_checker": config.teachers.terminal_checker,
    }
    judges = {**teachers, "search.value": valued}

    def refuse(settings: Mapping[str, bool], why: str) -> None:
        for name, used in settings.items():
            if used:
                raise ConfigError(f"{name} is set and {why}")

    check_guided(config, method)
    if method.ruled and train.groups == "verified":
        graded = {
            "rewards.custom": config.rewards.own,
            "rewards.hre_weight=0": config.rewards.hre_weight == 0,
        }
        refuse(
            {**judges, "search.mode=token": mode == "token", **graded},
            f"train.method is {train.method}, which learns from right responses that a rule "
            "judged: name another method, such as --use-grpo (train.method=grpo)",
        )
    if mode == "token":
        refuse(teachers, "search.mode is token: it works on steps; use step or unset it")
        if train.groups != "tree":
            raise ConfigError(
                f"train.groups is {train.groups} and search.mode is token: set train.groups=tree"
            )
    if train.groups == "verified":
        refuse(judges, "train.groups is verified: the source's rule alone judges there; unset one")
    if train.reward == "hre" and config.rewards.hre_weight == 0:
        raise ConfigError(
            "train.reward is hre and rewards.hre_weight is 0: "
            "unset train.reward, or set it to combined"
        )
    check_settings(config.search, valued)


def check_guided(config: Config, method: Searches) -> None:
    """Raise ConfigError for settings that AlphaZero's loop can't have."""
    train, engine = config.train, config.engine
    if not method.guided:
        return
    if train.groups != "verified":
        raise ConfigError(
            f"train.groups is {train.groups} and train.method is {train.method}, whose trees are "
            "searched under the source's rule: set train.groups=verified"
        )
    if engine.backend != "inprocess":
        raise ConfigError(
            f"engine.backend is {engine.backend} and train.method is {train.method}, whose value "
            "reads the student's own states: set engine.backend=inprocess"
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


# -- answering by search ---------------------------------------------------------------------------


def answer_search(
    student: Any,
    config: Config,
    perplexity: Perplexity | None = None,
    stop: Callable[[], bool] = lambda: False,
    value: ValueFunction | None = None,
    *,
    policy: StepPolicy | TokenPolicy | None = None,
    verifier: Verifier | None = None,
    advisor: Advisor | None = None,
) -> Search:
    """The search that answers questions: no gold.

    Under a verifier that judges each step; elsewhere a finished response earns the value network's
    V of it where there is one, else its PRE, and without either 1: then the vote counts responses
    and the most visited path is the likeliest one. `policy` proposes steps or tokens, None: the
    student's engine does.
    """
    settings = config.search
    evaluate: Evaluate | None = finished_earns_one
    grading = None
    if value is not None:
        evaluate = None
    elif perplexity is not None and config.rewards.pre_weight > 0:
        evaluate, grading = make_evaluate(config.rewards, perplexity, None), perplexity
    return Search(
        policy_of(student, settings) if policy is None else policy,
        evaluate,
        settings,
        advisor,
        stop=stop,
        value=value,
        grading=grading,
        verifier=verifier,
        reading=reading_of,
    )


def policy_of(student: Any, settings: SearchConfig) -> EngineSteps | EngineTokens | RemoteSteps:
    """What proposes steps or tokens."""
    if settings.mode == "token":
        return EngineTokens(student, settings.temperature, settings.beam)
    return steps_of(student, settings.temperature)


def steps_of(student: Any, temperature: float) -> EngineSteps | RemoteSteps:
    """What proposes steps: the student's engine, or the server of its model."""
    steps = RemoteSteps if isinstance(student, RemoteStudent) else EngineSteps
    return steps(student, temperature)


def reading_of(problem: Problem) -> Reading:
    """What responses to a problem answer, for votes: as its source reads them."""
    source = source_of(problem)
    return lambda response: source.vote_key(response) or None
