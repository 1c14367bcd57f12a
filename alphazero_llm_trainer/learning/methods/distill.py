"""On-policy distillation (Agarwal et al. 2024): a teacher's probability of each token that the
student drew itself.

    A = log p_teacher - log p_student

of each drawn token is its advantage in GRPO's clipped loss: with the student's own draws that is
the gradient of the reverse KL, KL(student || teacher), state by state. No token is credited for
those after it, as in Thinking Machines' recipe (tinker-cookbook, `on_policy_distillation`, 2025).

A token counts as often as it was drawn, not as often as responses go through it: below a step that
a search went on from, one draw has many responses. The teacher scores what responses share once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ...config.load import Config, load_config
from ...engine.protocol import Engine
from ...errors import ConfigError, EngineError
from ...mcts.seeds import derive_seed
from ...policy.folders import find_model
from ...tree.arena import Tree
from ...tree.graded import GradedTree
from ..rows import SampledRows
from ..stats import RoundStats
from ..train_row import TrainRow, TrainRows, sum_own
from .base import Method, Totals
from .grpo import GRPO, Grpo

if TYPE_CHECKING:
    from ...policy.student import Student

TEACHER_KEY = "train.teacher"


class DrawnRows(SampledRows):
    """Rows of all that the student drew, each token against the teacher's probability of it."""

    def sample_rows(
        self, number: int, trees: list[GradedTree], stats: RoundStats
    ) -> list[TrainRow]:
        """Whole questions in random order."""
        rng = Random(derive_seed(self.config.seed, "distill", number))
        return [row for tree in rng.sample(trees, len(trees)) for row in self.draw_rows(tree)]

    def draw_rows(self, graded: GradedTree) -> list[TrainRow]:
        """The ways to a tree's ends. A token's weight is how often it was drawn after the tokens
        before it, in the first row that has it; in the others it is 0.
        """
        tree, times = graded.tree, count_draws(graded.tree)
        prompt = self.student.prompt_ids(graded.task.problem.question)
        # Of (a state, a token): the state after it; states are numbered, that of the prompt is 0.
        after: dict[tuple[int, int], int] = {}
        states, weights = [0], Counter[int]()  # of each node; of each state
        for node in range(1, len(tree)):
            state = states[tree.parent[node]]
            for token in tree.token_ids[node]:
                state = after.setdefault((state, token), len(after) + 1)
                weights[state] += times[node]
            states.append(state)
        rows = []
        for end in range(1, len(tree)):
            if tree.children[end]:
                continue
            ids, logprobs = tree.sequence(end)
            state, known = 0, list[float]()
            for token in ids:
                state = after[state, token]
                known.append(float(weights.pop(state, 0)))
            if any(known):
                own, index = tuple(known), next(self.indices)
                rows.append(TrainRow(prompt, ids, logprobs, draws=own, index=index))
        return rows

    def fill_rows(
        self, number: int, trees: list[GradedTree], rows: list[TrainRow], stats: RoundStats
    ) -> list[TrainRow]:
        """The first rows that have room, and demonstrations beside them: `rows_per_round` in
        all where there are demonstrations, which fill up for rows that lack. Those that have room
        are scored.
        """
        made = super().fill_rows(number, trees, rows, stats)
        return [*self.teach_rows(made[: stats.rows], stats), *made[stats.rows :]]

    def teach_rows(self, rows: TrainRows, stats: RoundStats) -> list[TrainRow]:
        """Rows with their advantages, and in `stats` the KL and what the teacher scored."""
        teacher: Engine = self.scorer
        fresh = [next(at for at, weight in enumerate(row.draws) if weight) for row in rows]
        before = teacher.cost.scored_tokens
        scores = asyncio.run(
            teacher.score(
                [
                    (row.prompt_ids + row.completion_ids[:start], row.completion_ids[start:])
                    for row, start in zip(rows, fresh, strict=True)
                ]
            )
        )
        teacher.sleep()
        scored = teacher.cost.scored_tokens - before
        stats.cost.scored_tokens += scored
        made = []
        for row, start, logprobs in zip(rows, fresh, scores, strict=True):
            own = zip(row.draws[start:], logprobs, row.old_logprobs[start:], strict=True)
            advantages = [weight * (theirs - ours) for weight, theirs, ours in own]
            made.append(replace(row, advantages=(*[0.0] * start, *advantages)))
        if made:
            stats.teacher_kl = -sum_own(made, "advantages") / sum_own(made, "draws")
            apart = sum(row.draws[-1] * len(row.completion_ids) for row in made)
            stats.teacher_share = scored / apart
        return made


def count_draws(tree: Tree) -> list[int]:
    """How often each node was drawn: once for each continuation that begins above it and goes
    through it.
    """
    counts, begun = [0] * len(tree), 0
    for leaf, _, backups in tree.simulations:
        above = len(tree.path(leaf))
        for end, _, _ in tree.backups[begun:backups]:
            for node in tree.path(end)[above:]:
                counts[node] += 1
        begun = backups
    return counts


class Distill(Grpo):
    """GRPO's loss as a mean over draws."""

    def totals(self, rows: TrainRows) -> Totals:
        """How many tokens were drawn, and replayed."""
        replayed = sum(row.own_tokens for row in rows if row.kind == "demonstration")
        return (replayed + sum_own(rows, "draws"),)


# -- the teacher -----------------------------------------------------------------------------------


def is_served(config: Config) -> bool:
    """Whether a server is the teacher."""
    return (config.train.teacher or "").startswith(("http://", "https://"))


def teacher_config(config: Config) -> tuple[Config, Path | None]:
    """The teacher's own configuration, and its folder where it is weights of another student."""
    models = {name: spec.model_dump(mode="json") for name, spec in config.models.items()}
    engine = config.engine.model_dump(mode="json") | {"backend": "inprocess"}
    layers: list[dict[str, Any]] = [{"models": models, "engine": engine}]
    keys, folder = find_model(str(config.train.teacher), load_config(overrides=layers), TEACHER_KEY)
    return load_config(overrides=[*layers, keys]), folder


def check_teacher(config: Config) -> None:
    """Raise ConfigError where the teacher is no model."""
    if not is_served(config):
        teacher_config(config)


def load_teacher(student: Student, config: Config) -> Engine:
    """The engine that scores the student's draws.

    Raises ConfigError for a server that doesn't tell prompts' log-probabilities, and a teacher that
    reads other tokens, or fewer.
    """
    from ...engine.vllm_server import ServerEngine
    from ...policy.student import QUESTION, load_student

    teacher, policy = config.train.teacher, student.engine
    if is_served(config):
        try:
            engine: Engine = ServerEngine(
                student.model,
                student.tokenizer,
                settings=config.engine.with_values(vllm={"base_url": teacher}),
                adapter="full",
                eos_id=policy.eos_id,
                eos_ids=policy.eos_ids,
                step_ends=policy.step_ends,
            )
            asyncio.run(engine.score([(student.prompt_ids(QUESTION), (policy.eos_id,))]))
        except EngineError as error:
            raise ConfigError(
                f"{TEACHER_KEY} is {teacher}, which can't score the student's tokens "
                f"({str(error).partition(': ')[0]}): name a vLLM server of a model with its "
                "tokenizer, or a folder"
            ) from error
    else:
        settings, folder = teacher_config(config)
        made = load_student(settings, folder, inference=True)
        engine = made.engine
        mine, theirs = student.tokenizer.get_vocab(), made.tokenizer.get_vocab()
        if not mine.items() <= theirs.items() or policy.eos_id not in engine.eos_ids:
            raise ConfigError(
                f"{TEACHER_KEY} is {teacher}, whose vocabulary isn't that of student "
                f"{student.title}: name a teacher with the same tokens and end token"
            )
    reads, most = engine.capabilities.max_context, policy.capabilities.max_context
    if reads < most:
        raise ConfigError(
            f"{TEACHER_KEY} is {teacher}, which reads {reads:,} tokens where the student reads "
            f"{most:,}: set engine.max_context={reads}"
        )
    return engine


DISTILL = Method(
    name="distill",
    rows=DrawnRows,
    # The teacher takes the place of a reference.
    objective=lambda train, model, lora: Distill(train.with_values(kl_coefficient=0.0), model),
    rates=GRPO.rates,
    reads=frozenset({"clip_high", "clip_low", "pack", "rows_per_round", "teacher"}),
    check=check_teacher,
    load=load_teacher,
    worlds=False,
)
