"""How large a run is, from its configuration alone: rounds, rows, updates."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from ..config.load import Config
from ..errors import ConfigError
from ..problems.load import tasks_of
from ..problems.registry import open_source
from ..types import Task

# Of a method with critics: they train these alone, which learn what to expect, and replay
# demonstrations.
CRITIC_ROUNDS = 2
PROMPT = 96  # tokens of the longest prompt where nobody says: a short word problem
FORWARD_BYTES = 2 << 30  # of activations in a CPU's forward, where `train.micro_batch` is null


class RunSize:
    """Counts of a run.

    A checkpoint comes after every `save_every_rounds` rounds. `rows_per_round` is a multiple of the
    batch size, of which trees fill `policy_rows` and replayed demonstrations the rest; `share` is
    theirs of a minibatch. `planned` says the rounds in words. `supervised` is the method's
    (`learning.earned.Searches`).
    """

    def __init__(self, config: Config, supervised: bool) -> None:
        train, batch = config.train, config.train.optimizer.batch_size
        # Rounds shrink until a whole number of them makes `save_every` questions.
        self.save_every_rounds = math.ceil(train.save_every / train.questions_per_round)
        self.questions_per_round = min(
            math.ceil(train.save_every / self.save_every_rounds), train.num_examples
        )
        self.rounds = math.ceil(train.num_examples / self.questions_per_round)
        self.questions = self.rounds * self.questions_per_round  # the last round may have fewer
        self.share = replay_share(config)
        if supervised:
            self.updates_per_round = train.updates_per_round
            self.rows_per_round = self.policy_rows = self.updates_per_round * batch
        else:
            self.policy_rows = train.rows_per_round
            wanted = round(self.policy_rows / (1 - self.share), 6)
            self.rows_per_round = max(batch, math.ceil(wanted / batch) * batch)
            self.updates_per_round = train.optimizer.epochs * self.rows_per_round // batch
        self.tokens = train.tokens
        shrunk = self.questions_per_round < min(train.questions_per_round, train.num_examples)
        why = f", for train.save_every={train.save_every}" if shrunk else ""
        self.planned = (
            f"{self.rounds:,} round{'s' * (self.rounds > 1)} of {self.questions_per_round}{why}"
        )
        self.updates = self.rounds * self.updates_per_round
        self.warmup = warmup_of(config, self.updates_per_round, self.updates)

    def name(self, number: int) -> str:
        """Round `number` as it is shown; of how many is not known where tokens end the run."""
        return str(number + 1) if self.tokens else f"{number + 1}/{self.rounds}"

    def of_round(self, tasks: Sequence[Task], number: int) -> dict[str, Task]:
        """The questions of round `number` among the run's, by their keys in the journal."""
        size = self.questions_per_round
        return {
            f"{number}/{task.problem.id}": task
            for task in tasks[number * size : (number + 1) * size]
        }


def replay_share(config: Config) -> float:
    """The share of a minibatch that replays demonstrations: unless set, what the source says."""
    share = config.train.demonstration_share
    if not config.train.demonstrations:
        return 0.0
    return open_source(config).demonstration_share if share is None else share


def warmup_of(config: Config, unit: int, updates: int) -> int:
    """Updates over which the learning rate rises: `train.optimizer.warmup` times `unit`, a quarter
    of all `updates` at most. Raises ConfigError where the user asks for more; a recipe's is cut.
    """
    wanted, most = config.train.optimizer.warmup * unit, updates // 4
    if wanted > most:
        fix = f"set {most // unit} or less" if most >= unit else "leave it out"
        why = f"and the rate rises over a quarter of a run at most: {fix}"
        config.refuse({"train.optimizer.warmup": why})
    return min(wanted, most)


def used_questions(config: Config) -> int:
    """How many of the first training questions warm-up and a run of the configured size take: no
    data for what judges it.

    A run's questions begin after the demonstrations that it replays, else with the first question.
    """
    train = config.train
    if replay_share(config):
        return train.demonstrations + train.num_examples
    return max(train.demonstrations, train.num_examples)


def fresh_questions(config: Config) -> list[Task]:
    """The first `train.critic.questions` that neither warm-up nor a training run of the configured
    size takes.

    Raises ConfigError where the source has too few of them.
    """
    wanted, used = config.train.critic.questions, used_questions(config)
    tasks = tasks_of(config, "train", wanted, used)
    if len(tasks) < wanted:
        raise ConfigError(
            f"--num is {wanted:,} and {config.problems.source} has {len(tasks):,} training "
            f"questions beyond the {used:,} that warm-up and a run of train.num_examples use: ask "
            "for fewer, or set train.num_examples to what your run used"
        )
    return tasks


def rank_and_size() -> tuple[int, int]:
    """The process's rank and how many there are, as its launcher says; (0, 1) without one."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def layer_sizes(config: Any) -> tuple[int, int, int]:
    """A decoder's layers, and the hidden and intermediate size of one."""
    shape = config.get_text_config()
    inner = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    return shape.num_hidden_layers, shape.hidden_size, inner


def rows_of_a_forward(batch: int, length: int, layers: int, hidden: int, intermediate: int) -> int:
    """Rows of `length` tokens that a forward on a CPU takes by default: a divisor of `batch`,
    within FORWARD_BYTES in fp32.

    It depends on the model, the configuration and the data alone, so that a run adds its gradients
    up in one order everywhere.
    """
    row = length * layers * (10 * hidden + 4 * intermediate) * 4
    return max(
        size
        for size in range(1, batch + 1)
        if batch % size == 0 and (size == 1 or size * row <= FORWARD_BYTES)
    )
