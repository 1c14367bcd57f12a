"""How large a run is, from its configuration alone: rounds, rows, updates, bounds on what is sampled, what is written."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.load import Config
from ..config.sections import StudentModel
from ..config.train import TrainConfig
from ..problems.source import open_source
from ..types import Task

MB = 1e6


@dataclass(frozen=True, slots=True)
class RunSize:
    """Counts of a run; what is sampled is an upper bound: trees that end early, and steps in common, make it less.

    A checkpoint comes after every `save_every_rounds` rounds. `rows_per_round` is a multiple of the batch size, of which
    trees fill `policy_rows` and replayed demonstrations the rest; `share` is theirs of a minibatch. `responses` are
    those to a question, `teacher_calls` and `sampled_tokens` those of all rounds.
    """

    config: Config
    rounds: int
    questions_per_round: int
    save_every_rounds: int
    share: float
    policy_rows: int
    rows_per_round: int
    updates_per_round: int
    responses: int
    sampled_tokens: int
    evaluated_answers: int
    teacher_calls: int

    def of_round(self, tasks: Sequence[Task], number: int) -> dict[str, Task]:
        """The questions of round `number` among the run's, by their keys in the journal."""
        size = self.questions_per_round
        return {f"{number}/{task.problem.id}": task for task in tasks[number * size : (number + 1) * size]}

    @classmethod
    def of(cls, config: Config) -> RunSize:
        train, search = config.train, config.search
        # Rounds shrink until a whole number of them makes `save_every` questions.
        parts = math.ceil(train.save_every / train.questions_per_round)
        size = min(math.ceil(train.save_every / parts), train.num_examples)
        rounds = math.ceil(train.num_examples / size)
        share, batch = replayed(config), train.optimizer.batch_size
        if train.supervised:
            updates = train.updates_per_round
            rows = own = updates * batch
        else:
            own = train.rows_per_round
            rows = max(batch, math.ceil(round(own / (1 - share), 6) / batch) * batch)
            updates = train.optimizer.epochs * rows // batch
        expansions, responses = searched(config)
        tokens = responses * search.max_tokens
        if search.budget_tokens is not None:
            tokens = min(tokens, search.budget_tokens)
        validations = math.ceil(rounds / parts) + 1
        evaluated = 2 * train.eval_size + validations * train.validation_size
        asked = 0 if config.teachers.tier == "none" else expansions * (config.teachers.right + config.teachers.wrong)
        return cls(
            config,
            rounds,
            size,
            parts,
            share,
            own,
            rows,
            updates,
            responses,
            train.num_examples * tokens,
            evaluated,
            train.num_examples * asked,
        )

    @property
    def evaluated_tokens(self) -> int:
        """Tokens of all evaluations, at most."""
        return self.evaluated_answers * self.config.search.max_tokens

    def expected_tokens(self, tokens: float, right: Sequence[float]) -> float:
        """Tokens to expect of all searches, where a response has so many and `right` are questions' shares of right ones."""
        shares = right if right else (0.5,)
        responses = sum(expected_responses(self.config, share) for share in shares) / len(shares)
        most = self.sampled_tokens / self.config.train.num_examples
        return self.config.train.num_examples * min(responses * tokens, most)

    def checkpoints_from(self, start: int) -> int:
        """How many checkpoints come after `start` rounds."""
        return math.ceil((self.rounds - start) / self.save_every_rounds)

    @property
    def questions(self) -> int:
        """Those of all rounds; the last one may have fewer."""
        return self.rounds * self.questions_per_round

    @property
    def updates(self) -> int:
        return self.rounds * self.updates_per_round

    def adapter(self, spec: StudentModel) -> str:
        """What is trained of a student, in words."""
        lora = (self.config.train.adapter or spec.adapter) == "lora"
        return f"LoRA adapters of rank {spec.lora.rank}" if lora else "all weights"


def replayed(config: Config) -> float:
    """The share of a minibatch that replays demonstrations: unless set, what the source says."""
    share = config.train.demonstration_share
    if not config.train.demonstrations:
        return 0.0
    return open_source(config).demonstration_share if share is None else share


def used_questions(config: Config) -> int:
    """How many of the first training questions warm-up and a run of the configured size take: no data for what judges it.

    A run's questions begin after the demonstrations that it replays, else with the first question.
    """
    train = config.train
    questions = train.first_question + train.num_examples
    return train.demonstrations + questions if replayed(config) else max(train.demonstrations, questions)


def searched(config: Config) -> tuple[int, int]:
    """Expansions and responses of a training tree, at most."""
    train, search = config.train, config.search
    if search.mode == "token":
        # A simulation rolls out once; a beam once for each of its paths.
        return search.simulations, search.simulations * (search.beam if search.rollout == "beam" else 1)
    times = 1 + train.requeue_limit
    if train.groups == "chain":
        return times, times * search.samples
    # A simulation under a verifier is one chain.
    expansions = times * search.simulations
    return expansions, expansions * (1 if train.groups == "verified" else search.samples)


def expected_responses(config: Config, right: float) -> float:
    """Responses to expect of a question to which a share of `right` ones is drawn, each by itself.

    Steps in common and repaired chains are cheaper than that, and the student improves: a run samples rather less.
    """
    train, most = config.train, searched(config)[1]
    if config.search.mode == "token":
        return most
    enough = config.search.enough_correct
    if train.groups == "verified" and enough:
        # Draws until the first right one, `most` at most: sum of (1-p)^i for i < most. As many again for each further one.
        first = (1 - (1 - right) ** most) / right if right else most
        return min(enough * first, most)
    group = most // (1 + train.requeue_limit)
    # A group is searched further where all its responses came out the same.
    flat = right**group + (1 - right) ** group
    return group + (most - group) * flat


def rounded(count: float) -> str:
    """A count with two digits that say something."""
    return f"{float(f'{count:.2g}'):,.0f}"


def rank_and_size() -> tuple[int, int]:
    """The process's rank and how many there are, as its launcher says; (0, 1) without one."""
    names = (os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", ""))
    rank, size = (int(name) if name.isdigit() else -1 for name in names)
    return (rank, size) if 0 <= rank < size else (0, 1)


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """What a run has still to write, in bytes: `checkpoints` of `checkpoint` each, the best weights, the student at its end.

    Journal and metrics come on top: `files.SPARE_BYTES` are left free for them.
    """

    checkpoints: int
    checkpoint: float
    best: float
    student: float

    @property
    def total(self) -> int:
        return int(self.checkpoints * self.checkpoint + self.best + self.student)

    @property
    def next(self) -> int:
        """The next checkpoint alone, with new best weights."""
        return int(self.checkpoint + self.best)

    def __str__(self) -> str:
        count = f"{self.checkpoints} checkpoint{'s' * (self.checkpoints != 1)} of {self.checkpoint / MB:,.0f} MB"
        return f"{self.total / MB:,.0f} MB: {count}, the best weights {self.best / MB:,.0f}, student/ {self.student / MB:,.0f}"


def disk_plan(
    train: TrainConfig,
    checkpoints: int,
    *,
    trained: float,
    student: float,
    layers: int,
    lora: bool,
    shards: float | None = None,
) -> DiskPlan:
    """What `checkpoints` take at most: what is trained and both moments of AdamW (in 8 bits they take less).

    Args:
        train: the configuration; PPO's critic is trained and kept, too.
        checkpoints: how many are still to come.
        trained: bytes of the policy's trained weights.
        student: bytes of the whole model as it is saved at the end.
        layers: of the model.
        lora: adapters are trained; they are saved beside the student at the end.
        shards: bytes of the trained weights of all ranks under FSDP, whose checkpoints have them twice; None without it.
    """
    critic = 0.0
    if train.method == "ppo":
        extra = 0 if lora else 1
        critic = trained * (layers + extra) / layers
    checkpoint = 3 * (trained + critic) if shards is None else 4 * shards
    return DiskPlan(checkpoints, checkpoint, trained, student + (trained if lora else 0))
