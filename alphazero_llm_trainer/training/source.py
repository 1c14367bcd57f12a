"""A round of training: search its questions (or read them from the journal), give credit, mix in demonstrations."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..collect import FAILED_REWARD, Collector, GradedTree
from ..config.load import Config
from ..engine.protocol import Verifier
from ..errors import RewardError
from ..mcts.driver import derive_seed
from ..mcts.extract import OUTSIDE, Trajectory, source_of, step_values, trajectories
from ..mcts.journal import Journal
from ..mcts.tree import ROOT, Tree
from ..policy.engine_tokens import EngineTokens
from ..policy.student import Student
from ..types import STUDENT, Cost, Problem, Step, Task
from .credit import (
    asymmetric,
    clamp,
    group_advantages,
    is_flat,
    policy_advantages,
    process_advantages,
    step_advantages,
    visit_distillation,
)
from .rows import TrainRow
from .size import RunSize


class Interrupted(Exception):
    """The user asked to stop while a round was being searched."""


@dataclass(slots=True)
class RoundStats:
    """What a round's searches gave. Shares are of its questions; `depth` is the mean of the trees' deepest nodes.

    `taught` counts the distinct responses with a step of a teacher's, `failed_rewards` the questions that the user's own
    reward ended, which are among the `failed` ones. `simulations_per_second` is None where trees of before a stop were used.
    """

    round: int
    questions: int = 0
    flat_at_first: int = 0
    flat: int = 0
    extensions: int = 0
    extended: int = 0
    taught: int = 0
    all_right: int = 0
    all_wrong: int = 0
    mixed: int = 0
    trajectories: int = 0
    samples: int = 0
    mean_reward: float = 0.0
    solved: int = 0
    rows: int = 0
    updates: int = 0
    rows_unused: int = 0
    rows_filled: int = 0
    failed: int = 0
    failed_rewards: int = 0
    simulations: int = 0
    nodes_per_tree: float = 0.0
    tokens_per_tree: float = 0.0
    depth: float = 0.0
    simulations_per_second: float | None = None
    search_seconds: float = 0.0
    reused_trees: int = 0
    cost: Cost = field(default_factory=Cost)

    def as_dict(self) -> dict[str, Any]:
        names = [name for name in self.__slots__ if name != "cost"]
        return {**{name: getattr(self, name) for name in names}, "cost": self.cost.as_dict()}


def outcome(tree: Tree) -> str | None:
    """What a graded tree's responses came out as: all right "solved", all wrong (or equally good) "hopeless", "mixed"; None
    without any."""
    found = trajectories(tree)
    if len({one.outcome for one in found}) > 1:
        return "mixed"
    return None if not found else "solved" if found[0].right else "hopeless"


class RoundSource:
    """Rows for round after round; the same rows for the same weights, whatever was killed in between.

    Args:
        student: the policy under training; its engine is told about new weights at the start of each round.
        collector: searches and grades.
        tasks: training questions in order; round k takes the k-th slice of `size.questions_per_round`.
        demonstrations: worked solutions that are replayed, may be empty.
        journal: where finished trees go, and come from after a restart.
        verifier: scores steps for `train.grpo.credit: process`; else None.
        on_tree, on_round: called after each tree and each round.
        stop: True once the user wants to end.
    """

    def __init__(
        self,
        student: Student,
        config: Config,
        collector: Collector,
        tasks: Sequence[Task],
        demonstrations: Sequence[Task],
        journal: Journal,
        *,
        size: RunSize,
        verifier: Verifier | None = None,
        on_tree: Callable[[GradedTree], None],
        on_round: Callable[[RoundStats], None],
        stop: Callable[[], bool],
    ) -> None:
        self.student, self.config, self.collector = student, config, collector
        self.tasks, self.demonstrations, self.journal = tasks, demonstrations, journal
        self.size, self.verifier = size, verifier
        self.on_tree, self.on_round, self.stop = on_tree, on_round, stop
        self._buffer: list[TrainRow] = []
        self._buffered_rounds = 0
        self._own: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._own_rounds = 0

    @property
    def demonstration_rows(self) -> int:
        """Replayed rows of a GRPO or PPO round."""
        return self.size.rows_per_round - self.size.policy_rows if self.demonstrations else 0

    # -- a round -----------------------------------------------------------------------------------------------------

    def grpo(self, number: int) -> list[TrainRow]:
        """Exactly `size.rows_per_round` rows of round `number`, advantages included."""
        trees, stats = self.search(number)
        return self.filled(number, trees, self.credited(trees, stats), stats)

    def ppo(self, number: int) -> list[TrainRow]:
        """As `grpo`: sampled responses, as often as each was sampled, with rewards."""
        trees, stats = self.search(number)
        rows: list[TrainRow] = []
        # Whole questions, which share their prompt: the mixed ones first, as GRPO trains on; the rest in random order.
        shuffled = Random(derive_seed(self.config.seed, "ppo", number)).sample(trees, len(trees))
        if self.config.train.ppo.mixed_first:
            shuffled.sort(key=lambda tree: self.collector.flat(tree.tree))
        for tree in shuffled:
            prompt = self.student.prompt_ids(tree.task.problem.question)
            for found in self.of_policy(tree.tree):
                reward, silent = self.collector.reward(found), (0.0,) * len(found.token_ids)
                source = source_of(tree.tree, found)
                row = TrainRow(prompt, found.token_ids, found.logprobs, silent, reward=reward, source=source)
                rows += [row] * found.samples
        return self.filled(number, trees, rows, stats)

    def filled(self, number: int, trees: list[GradedTree], rows: list[TrainRow], stats: RoundStats) -> list[TrainRow]:
        """The first rows that have room, demonstrations beside them and where rows lack; the round is counted."""
        if self.config.train.replay_own:
            for earlier in range(self._own_rounds, number):
                self._own += self.solved(self.restored(earlier))
            self._own += self.solved(trees)
            self._own_rounds = number + 1
        wanted = self.size.rows_per_round - self.demonstration_rows
        stats.updates = self.size.updates_per_round
        stats.rows, stats.rows_unused = min(len(rows), wanted), max(len(rows) - wanted, 0)
        rows = rows[:wanted]
        stats.rows_filled = wanted - len(rows)
        rows += self.replayed(number, self.demonstration_rows + (stats.rows_filled if self.demonstrations else 0))
        rows += [self.silent(trees)] * (self.size.rows_per_round - len(rows))
        self.finish(stats)
        return rows

    def expert(self, number: int) -> list[TrainRow]:
        """Rows of `rft` or `legacy`: replayed ones and own good ones of all rounds so far, `batch_size` an update.

        The round's own good ones say how many updates: `epochs` passes over them, and `updates_per_round` at most.
        """
        settings: Any = self.config.train.settings
        for earlier in range(self._buffered_rounds, number):
            self._buffer += self.good(self.restored(earlier))
        trees, stats = self.search(number)
        fresh = self.good(trees)
        self._buffer += fresh
        self._buffered_rounds = number + 1
        rng = Random(derive_seed(self.config.seed, self.config.train.method, number))
        rows: list[TrainRow] = []
        replay = round(settings.batch_size * self.size.share) if self.demonstrations else 0
        own = settings.batch_size - replay
        stats.updates = min(settings.updates_per_round, math.ceil(settings.epochs * len(fresh) / max(own, 1)))
        for _ in range(stats.updates):
            rows += self.replayed(rng.getrandbits(62), replay, scored=False)
            rows += rng.sample(self._buffer, own) if len(self._buffer) >= own else rng.choices(self._buffer, k=own)
        stats.rows, stats.rows_unused = len(fresh), 0
        self.finish(stats)
        return rows

    def search(self, number: int) -> tuple[list[GradedTree], RoundStats]:
        """The graded trees of a round, in the order of its questions."""
        began = time.perf_counter()
        model = self.student.model
        training = model.training
        model.eval()
        self.student.engine.set_policy(None, number)
        found = {tree.key: tree for tree in self.restored(number)}
        stats = RoundStats(number, reused_trees=len(found))
        tasks = self.tasks_of_round(number)
        missing = [(key, task) for key, task in tasks.items() if key not in found]
        if missing:
            self.search_missing(missing, number, found)
        if self.collector.perplexity is not None:
            self.collector.perplexity.forget()
        if self.stop():
            raise Interrupted
        model.train(training)
        trees = [found[key] for key in tasks]
        self.check_rewards(trees)
        stats.search_seconds = time.perf_counter() - began
        self._count(trees, stats)
        if not stats.reused_trees:
            stats.simulations_per_second = stats.simulations / max(stats.search_seconds, 1e-9)
        # Many trees wait at once: their seconds overlap, so the round's own are what it cost.
        stats.cost.seconds = stats.search_seconds
        return trees, stats

    def tasks_of_round(self, number: int) -> dict[str, Task]:
        """A round's questions by their keys in the journal."""
        return self.size.of_round(self.tasks, number)

    def settle(self) -> bool:
        """Wait for what is searched ahead of its round; False where the user ended that."""
        return True

    def close(self) -> None:
        """The run is over, or has failed: nothing is searched any more."""

    def check_rewards(self, trees: list[GradedTree]) -> None:
        """Raise RewardError where the user's own reward has failed for every question of the run so far."""
        failed = [tree.failed_reward for tree in trees if tree.failed_reward is not None]
        if failed and all(str(r["ended_by"]).startswith(FAILED_REWARD) for r in self.journal.records.values()):
            raise RewardError(f"the reward of every question failed ({len(failed):,} so far); the first: {failed[0]}")

    def search_missing(self, missing: list[tuple[str, Task]], number: int, found: dict[str, GradedTree]) -> None:
        """Search the (key, task) of round `number` that `found` lacks, and put their trees there and into the journal."""
        asyncio.run(self._search(missing, number, found))

    async def _search(self, missing: list[tuple[str, Task]], number: int, found: dict[str, GradedTree]) -> None:
        async for tree in self.collector.collect(missing, self.config.seed):
            if tree.ended_by == "stopped":
                continue
            self.journal.append(tree.record(round=number, policy=self.student.engine.version))
            found[tree.key] = tree
            self.on_tree(tree)

    def restored(self, number: int) -> list[GradedTree]:
        """The trees of a round that the journal has."""
        trees = []
        for key, task in self.tasks_of_round(number).items():
            record = self.journal.get(key)
            if record is not None:
                trees.append(GradedTree.from_record(record, task))
        return trees

    def _count(self, trees: list[GradedTree], stats: RoundStats) -> None:
        stats.questions = len(trees)
        total = 0.0
        for tree in trees:
            found = trajectories(tree.tree)
            stats.failed += tree.ended_by.startswith("failed")
            stats.failed_rewards += tree.failed_reward is not None
            stats.flat_at_first += tree.flat_at_first
            stats.flat += self.collector.flat(tree.tree)
            stats.extensions += tree.extensions
            stats.extended += tree.extensions > 0
            kind = outcome(tree.tree)
            stats.all_right += kind == "solved"
            stats.all_wrong += kind == "hopeless"
            stats.mixed += kind == "mixed"
            stats.trajectories += len(found)
            stats.taught += sum(not t.student for t in found)
            stats.samples += sum(t.samples for t in found)
            stats.solved += any(t.right for t in found)
            total += sum(self.collector.reward(t) * t.samples for t in found)
            stats.cost.add(tree.cost)
            stats.simulations += tree.tree.N[ROOT]
            stats.nodes_per_tree += (len(tree.tree) - 1) / len(trees)
            stats.tokens_per_tree += tree.cost.sampled_tokens / len(trees)
            stats.depth += max(tree.tree.depths()) / len(trees)
        stats.mean_reward = total / max(stats.samples, 1)

    def finish(self, stats: RoundStats) -> None:
        self.student.engine.rest()
        self.on_round(stats)

    # -- rows --------------------------------------------------------------------------------------------------------

    def credited(self, trees: list[GradedTree], stats: RoundStats) -> list[TrainRow]:
        """Rows with a non-zero advantage: each group's strongest first, groups taking turns."""
        grpo = self.config.train.grpo
        groups = [(tree, self.of_policy(tree.tree)) for tree in trees]
        groups = [(tree, found) for tree, found in groups if not is_flat([self.collector.reward(t) for t in found])]
        scale = self._step_scale(groups) if grpo.credit == "step" else 1.0
        processes = self._processes(groups, stats) if grpo.credit == "process" else [[] for _ in groups]
        queues = []
        for (tree, found), process in zip(groups, processes, strict=True):
            prompt = self.student.prompt_ids(tree.task.problem.question)
            rows = [
                TrainRow(
                    prompt,
                    t.token_ids,
                    t.logprobs,
                    tuple(asymmetric(a, grpo.negative_weight)),
                    source=source_of(tree.tree, t),
                )
                for t, a in zip(found, self._advantages(tree, found, scale, process), strict=True)
            ]
            rows = [row for row in rows if any(row.advantages)]
            rows.sort(key=lambda row: -max(abs(a) for a in row.advantages))
            queues.append(rows)
        turns = max((len(rows) for rows in queues), default=0)
        return [rows[turn] for turn in range(turns) for rows in queues if turn < len(rows)]

    def of_policy(self, tree: Tree) -> list[Trajectory]:
        """The responses that GRPO and PPO may learn from: a teacher's tokens are off-policy, and without
        `train.grpo.teacher_rows` such responses are neither rows nor members of their group's baseline."""
        return self.collector.counted(tree)

    def _advantages(
        self, tree: GradedTree, found: list[Trajectory], scale: float, process: list[list[float]]
    ) -> list[list[float]]:
        """One number a token of each of a tree's responses, by `train.grpo.credit`."""
        grpo, grown = self.config.train.grpo, tree.tree
        if grpo.credit == "step":
            return [
                step_advantages(values, t.lengths, scale=scale, clip=grpo.advantage_clip)
                for t, values in zip(found, self._step_values(grown, found), strict=True)
            ]
        if grpo.credit == "visits":
            return [self._among_siblings(grown, t) for t in found]
        rewards, counts = [self.collector.reward(t) for t in found], [t.samples for t in found]
        if grpo.credit == "group":
            whole = group_advantages(rewards, counts, clip=grpo.advantage_clip, weigh_repeats=grpo.weigh_repeats)
            return [[a] * len(t.token_ids) for a, t in zip(whole, found, strict=True)]
        # The sum is clipped, too, so that repeats weigh it afterwards.
        whole = group_advantages(rewards, counts, clip=grpo.advantage_clip, weigh_repeats=False)
        weights = counts if grpo.weigh_repeats else [1] * len(counts)
        return [
            [weight * clamp(a + grpo.process_weight * step, grpo.advantage_clip) for step in steps]
            for weight, a, steps in zip(weights, whole, process, strict=True)
        ]

    def _step_values(self, tree: Tree, found: list[Trajectory]) -> list[list[tuple[float, float]]]:
        """`(Q(child), V(parent))` of each response's steps, in the currency of `train.reward`."""
        counts, sums = self.collector.worth(tree)
        return [step_values(t, self.collector.reward(t), counts, sums) for t in found]

    def _among_siblings(self, grown: Tree, found: Trajectory) -> list[float]:
        """Visit credit of one response `[T]`; tokens of a rollout have no siblings and get 0."""
        grpo, parent = self.config.train.grpo, ROOT
        siblings, chosen, lengths, outside = [], [], [], 0
        for node, length in zip(found.nodes, found.lengths, strict=True):
            if node == OUTSIDE:
                outside += length
                continue
            # A node that was never visited has no share of visits; the response's own nodes always count.
            around = [
                child
                for child in grown.children[parent]
                if (grown.N[child] or child == node) and (grpo.teacher_rows or grown.source[child] == STUDENT)
            ]
            siblings.append(around)
            chosen.append(around.index(node))
            lengths.append(length)
            parent = node
        logprobs = [[math.fsum(grown.logprobs[n]) for n in s] for s in siblings]
        policies = [visit_distillation([grown.N[n] for n in s]) for s in siblings]
        pairs = [list(zip(policy, own, strict=True)) for policy, own in zip(policies, logprobs, strict=True)]
        return policy_advantages(pairs, chosen, lengths) + [0.0] * outside

    def _processes(
        self, groups: list[tuple[GradedTree, list[Trajectory]]], stats: RoundStats
    ) -> list[list[list[float]]]:
        """Process advantages of every response's tokens, group by group."""
        assert self.verifier is not None
        verifier, spent = self.verifier, self.verifier.scored_tokens
        cutter = EngineTokens(self.student, 1.0, 1)
        steps = [[cutter.lines(t.token_ids, t.logprobs) for t in found] for _, found in groups]

        async def judged() -> list[list[float]]:
            pairs = [
                (tree.task.problem, response)
                for (tree, _), responses in zip(groups, steps, strict=True)
                for response in responses
            ]
            # As many at once as trees are searched at once: the model's cache holds no more.
            gate = asyncio.Semaphore(self.config.search.concurrent)

            async def judge(problem: Problem, steps: Sequence[Step]) -> list[float]:
                async with gate:
                    return list((await verifier(problem, cutter.prompt_ids(problem), steps)).steps)

            return await asyncio.gather(*(judge(problem, response) for problem, response in pairs))

        model = self.student.model
        training = model.training
        model.eval()
        scores = iter(asyncio.run(judged()))
        model.train(training)
        stats.cost.scored_tokens += verifier.scored_tokens - spent
        clip = self.config.train.grpo.advantage_clip
        return [
            process_advantages(
                [next(scores) for _ in found],
                [[len(step.token_ids) for step in one] for one in of_tree],
                [t.samples for t in found],
                clip=clip,
            )
            for (_, found), of_tree in zip(groups, steps, strict=True)
        ]

    def _step_scale(self, groups: list[tuple[GradedTree, list[Trajectory]]]) -> float:
        values = [one for tree, found in groups for one in self._step_values(tree.tree, found)]
        differences = [q - v for of_response in values for q, v in of_response]
        if not differences:
            return 1.0
        return math.sqrt(math.fsum(d * d for d in differences) / len(differences)) or 1.0

    def good(self, trees: list[GradedTree]) -> list[TrainRow]:
        """The method's rows: `rft` takes each question's right responses, those sampled most often first; `legacy` the best
        response of each question that has both better and worse ones, weighted by its reward."""
        if self.config.train.method == "rft":
            return [self._row(tree, found, 1.0) for tree in trees for found in self.right(tree)]
        rows = []
        for tree in trees:
            found = trajectories(tree.tree)
            rewards = [self.collector.reward(t) for t in found]
            if is_flat(rewards):
                continue
            best = max(range(len(found)), key=lambda i: (rewards[i], found[i].samples, -i))
            rows.append(self._row(tree, found[best], rewards[best]))
        return rows

    def right(self, tree: GradedTree) -> list[Trajectory]:
        """A question's right responses that `rft` learns from, all different. Under a rule those that it could judge come
        first."""

        def order(one: Trajectory) -> tuple[bool, int]:
            return not tree.tree.checked(node for node in one.nodes if node != OUTSIDE), -one.samples

        found = sorted((t for t in self.of_policy(tree.tree) if t.right), key=order)
        return found[: self.config.train.rft.responses]

    def _row(self, tree: GradedTree, found: Trajectory, weight: float) -> TrainRow:
        prompt = self.student.prompt_ids(tree.task.problem.question)
        silent, source = (0.0,) * len(found.token_ids), source_of(tree.tree, found)
        return TrainRow(prompt, found.token_ids, found.logprobs, silent, weight, source=source)

    def replayed(self, number: int, count: int, *, scored: bool = True) -> list[TrainRow]:
        """`count` demonstrations drawn by `number`; `scored` ones carry the student's log-probabilities of now.

        With `train.replay_own` the own responses of `solved` questions are drawn from beside them. A constant positive
        advantage makes the policy gradient of such a row that of supervised training.
        """
        if not count:
            return []
        rng = Random(derive_seed(self.config.seed, "replay", number))
        weight = self.config.train.demonstration_weight
        if self._own:
            pool = [self.student.worked(task) for task in self.demonstrations] + self._own
            pairs = rng.sample(pool, count) if count <= len(pool) else rng.choices(pool, k=count)
        else:
            pairs = [self.student.worked(rng.choice(self.demonstrations)) for _ in range(count)]
        old = [[0.0] * len(ids) for _, ids in pairs]
        if scored:
            model = self.student.model
            training = model.training
            model.eval()
            old = asyncio.run(self.student.engine.score(pairs))
            model.train(training)
        return [
            TrainRow(prompt, ids, tuple(logprobs), (weight,) * len(ids), 1.0, kind="demonstration")
            for (prompt, ids), logprobs in zip(pairs, old, strict=True)
        ]

    def solved(self, trees: list[GradedTree]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The likeliest response to each question that was answered rightly every time: no credit, but worth keeping."""
        found = []
        for tree in trees:
            own = self.of_policy(tree.tree)
            if own and all(t.right for t in own):
                best = max(own, key=lambda t: t.samples)
                found.append((self.student.prompt_ids(tree.task.problem.question), best.token_ids))
        return found

    def silent(self, trees: list[GradedTree]) -> TrainRow:
        """A row without advantage (only a KL penalty, where one is on, sees it): it fills a batch that the trees could not."""
        for tree in trees:
            for found in self.of_policy(tree.tree):
                return self._row(tree, found, 0.0)
        prompt = self.student.prompt_ids(self.tasks[0].problem.question)
        return TrainRow(prompt, (self.student.engine.eos_id,), (0.0,), (0.0,), 0.0)
