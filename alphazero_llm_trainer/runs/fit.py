"""Training on rows that are there: supervised training, a value network and a PRM.

`fit` makes the learner's updates, as `loop.py` does, without a search: it measures the model now
and then, keeps the best weights, and goes on from what a stopped training kept.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from ..config.load import Config
from ..config.train import TrainConfig
from ..errors import ConfigError
from ..learning.learner import Learner, RateSchedule
from ..learning.methods.base import Objective
from ..learning.models import MemoryOptions, load_trained_state, trained_state
from ..learning.probe import try_update
from ..learning.size import warmup_of
from ..learning.train_row import TrainRow, TrainRows
from ..live import Progress, StopAsked, StoppedError
from ..policy.weights import Tensors, load_tensors, save_tensors
from .folder import RunFolder, write_manifest

BEST = "best.safetensors"
KEPT_EVERY, KEPT_SHARE = 60.0, 0.05  # seconds between two, and at most so much of the time
FINAL_FRACTION = 0.02  # of the learning rate, where its cosine ends

FiguresLine = dict[str, float]  # a measurement's figures


@dataclass(slots=True)
class Course:
    """What a training did so far: the loss of each update, its measurements, the seconds of
    training alone, and the measurement of the weights that it ends with.
    """

    losses: list[float] = field(default_factory=list)
    lines: list[FiguresLine] = field(default_factory=list)
    seconds: float = 0.0
    line: FiguresLine = field(default_factory=dict)


class Kept:
    """What a stopped training goes on from: a checkpoint after some update, with the best weights
    and the course, in a folder; `say` gets a line about one that is broken.

    `identity` says which training it is: ConfigError where the folder has another.
    """

    def __init__(self, folder: Path, identity: str, say: Callable[[str], None]) -> None:
        self.folder, self.identity = RunFolder(folder), identity
        self.due = time.monotonic() + KEPT_EVERY
        self.place, self.state = self.folder.newest_checkpoint(say)
        if self.state.get("identity", identity) != identity:
            raise ConfigError(
                f"--out {folder.parent} has a training under way with other data or settings: "
                f"run its own line again, name another --out, or delete {folder}"
            )

    def remove(self) -> None:
        """The training is over."""
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def restore(self, learner: Learner) -> tuple[Course, Tensors]:
        """The course and the best weights of what there is to go on from, if anything."""
        if self.place is None:
            return Course(), {}
        course = Course(*self.state["told"])
        learner.restore(self.place, len(course.losses))
        best = load_tensors(self.place / BEST) if (self.place / BEST).is_file() else {}
        return course, best

    def save(self, learner: Learner, course: Course, best: Tensors, last: bool) -> None:
        """Write all of it, where that is due, and after the `last` update."""
        began = time.monotonic()
        if began < self.due and not last:
            return
        place = self.folder.checkpoint(len(course.losses))
        if place.is_dir():  # of a save that was killed
            shutil.rmtree(place)
        learner.save(place)
        if best:
            save_tensors(best, place / BEST)
        write_manifest(place, {"identity": self.identity, "told": astuple(course)})
        self.folder.keep_newest(place, 1)
        ended = time.monotonic()
        self.due = ended + max(KEPT_EVERY, (ended - began) / KEPT_SHARE)


def draw_minibatches(groups: Sequence[TrainRows], size: int, seed: int) -> Iterator[list[TrainRow]]:
    """The rows of `size` groups in a random order, pass after pass; each minibatch's own by length,
    so that a forward needs little padding.
    """
    order: list[int] = []
    generator = torch.Generator().manual_seed(seed)
    while True:
        while len(order) < size:
            order += torch.randperm(len(groups), generator=generator).tolist()
        drawn = sorted((groups[i] for i in order[:size]), key=group_tokens)
        yield [row for group in drawn for row in group]
        order = order[size:]


def group_tokens(group: TrainRows) -> int:
    """How many a group's rows have."""
    return sum(len(row.prompt_ids) + len(row.completion_ids) for row in group)


def plan_updates(config: Config, groups: int, rate: float) -> TrainConfig:
    """`config.train` with the updates for so many groups and the learning rate, where it leaves
    them open, and the updates of its warm-up. Raises ConfigError where those are too many.
    """
    train, optimizer = config.train, config.train.optimizer
    steps = train.sft_steps
    if steps is None:
        steps = math.ceil(optimizer.epochs * groups / optimizer.batch_size)
    if optimizer.learning_rate is None:
        optimizer = optimizer.with_values(learning_rate=rate)
    optimizer = optimizer.with_values(warmup=warmup_of(config, 1, steps))
    return train.with_values(sft_steps=steps, optimizer=optimizer)


def fit(
    model: Any,
    objective: Objective,
    groups: Sequence[TrainRows],
    train: TrainConfig,
    seed: int,
    memory: MemoryOptions = MemoryOptions(),  # noqa: B008
    *,
    measure: Callable[[Course], FiguresLine] | None = None,
    goal: Callable[[FiguresLine], float] = itemgetter("accuracy"),
    patience: float = math.inf,
    progress: Progress | None = None,
    stop: StopAsked = lambda: False,
    kept: Kept | None = None,
) -> Course:
    """Train `model` in place, and say how that went. Under `train.keep_best` it ends with the
    weights of its first best measurement.

    Args:
        groups: rows that are drawn together, `train.optimizer.batch_size` groups an update.
        train: with the number of updates and the rate (`plan_updates`).
        measure: figures of the model, every `train.evaluate_every` updates and after the last one.
        goal: what of a measurement is to be high.
        patience: so many measurements in a row without a better one end the training.
        kept: of a training that was stopped, which goes on.

    Raises:
        StoppedError: the user asked to stop.
        ConfigError: an update of the longest rows doesn't fit into memory.
        TrainingError: a loss or a gradient isn't finite.
    """
    shown = progress if progress is not None else Progress(quiet=True)
    steps, optimizer = train.sft_steps, train.optimizer
    assert steps is not None and optimizer.learning_rate is not None
    schedule = RateSchedule(optimizer.learning_rate, optimizer.warmup, steps, FINAL_FRACTION)
    learner = Learner(model, objective, memory, schedule, optimizer)
    longest = sorted(groups, key=group_tokens)[-optimizer.batch_size :]
    shown.wait("trying an update of the longest rows")
    try_update(learner, [row for group in longest for row in group])
    course, best = (Course(), {}) if kept is None else kept.restore(learner)
    held = "after the step in hand"
    shown.start(steps, len(course.losses), unit="step", doing="training", held=held)
    drawn = islice(draw_minibatches(groups, optimizer.batch_size, seed), len(course.losses), steps)
    for step, minibatch in enumerate(drawn, len(course.losses) + 1):
        began = time.perf_counter()
        course.losses.append(learner.update(minibatch)["loss"])
        course.seconds += time.perf_counter() - began
        shown.at(step)
        shown.now(f"loss {course.losses[-1]:.4f}")
        if stop():
            raise StoppedError
        worse = 0  # measurements since the best one
        if measure is not None and (step % train.evaluate_every == 0 or step == steps):
            course.lines.append(measure(course))
            goals = [goal(line) for line in course.lines]
            worse = len(goals) - 1 - goals.index(max(goals))
            if not worse or not train.keep_best:
                course.line = course.lines[-1]
            if train.keep_best and not worse:
                best = trained_state(model)
        if kept is not None:
            kept.save(learner, course, best, step == steps)
        if worse >= patience:
            break
    load_trained_state(model, best)
    model.eval()
    return course
