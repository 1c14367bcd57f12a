"""What critics learn from: the states of a question's searched trees, how each ended, and pairs of
sibling steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..config.train import CriticConfig
from ..errors import DataError
from ..eval.critic_figures import StatePairs
from ..learning.train_row import PerToken, TrainRow
from ..policy.states import States
from ..policy.student import Student
from ..problems.load import check_tokens, check_train_split
from ..problems.source import split_of
from ..tree.arena import Tree
from ..tree.extract import graded, step_preferences, value_targets
from ..tree.journal import journal_of, placed, record_at
from .preferences import Preference, has_preferences, read_preferences

StateIds = tuple[int, ...]

LEAST_OUTCOMES = 3  # responses behind both steps of a pair, and behind a step that is called wrong


# -- journals -> questions -------------------------------------------------------------------------


@dataclass(slots=True)
class Question:
    """A question's text, where its trees are, (journal, byte), and the preferences among its
    responses. `prompt_ids` are those of a world, whose prompt has more than the text; () elsewhere.
    """

    text: str
    prompt_ids: StateIds = ()
    places: list[tuple[Path, int]] = field(default_factory=list)
    preferences: list[Preference] = field(default_factory=list)

    def trees(self) -> Iterator[Tree]:
        """Its trees, each read when it is asked for: a journal is larger than memory."""
        for place in self.places:
            yield Tree.from_dict(record_at(*place)["tree"])


def read_questions(paths: Iterable[Path], vocabulary: int) -> list[Question]:
    """The questions of journals, of folders that hold some, and of files of step preferences, as
    they are met: with at least one finished response or preference.

    Raises DataError for a record of another split than train, without a tree, or with a token that
    is not one of `vocabulary`, and for a row that is no preference.
    """
    questions: dict[str, Question] = {}
    for named in paths:
        if has_preferences(named):
            for row in read_preferences(named):
                questions.setdefault(row.prompt, Question(row.prompt)).preferences.append(row)
            continue
        path = journal_of(named)
        for place, record in placed(path):
            check_train_split(record, path)
            check_tokens(record, path)
            try:
                text, tree = (
                    record["problem"]["question"],
                    Tree.from_dict(record["tree"]),
                )
            except (KeyError, TypeError) as error:
                raise DataError(
                    f"journal {path} has a record without {error}: it holds no graded trees"
                ) from error
            steps = [*tree.token_ids, *(rollout.token_ids for rollout in tree.rollouts)]
            highest = max((token for step in steps for token in step), default=0)
            if highest >= vocabulary:
                raise DataError(
                    f"journal {path} has a tree with token {highest}, and this student has "
                    f"{vocabulary}: name the student that searched it"
                )
            if any(True for _ in graded(tree)):
                turns = any(tree.seen)
                key = f"{text} {record['prompt_ids']}" if turns else text
                prompt = tuple(record["prompt_ids"]) if turns else ()
                question = questions.setdefault(key, Question(text, prompt))
                question.places.append((path, place))
    return list(questions.values())


def split_by_question(
    questions: Sequence[Question],
) -> tuple[list[Question], list[Question], list[Question]]:
    """(training, validation, test) questions, 75%, 10% and 15% of them; a hash of the text decides,
    so that a question is always on the same side.
    """
    parts: tuple[list[Question], list[Question], list[Question]] = ([], [], [])
    for question in questions:
        # Salted: of sources that are split by this hash too, these questions are all in train.
        parts[{"train": 0, "test": 2}.get(split_of(f"critic {question.text}"), 1)].append(question)
    if not all(parts):
        raise DataError(
            f"of {len(questions)} questions {', '.join(str(len(part)) for part in parts)} are left "
            "for training, validation and test: give more questions"
        )
    return parts


# -- trees -> states and pairs ---------------------------------------------------------------------


@dataclass(slots=True)
class State:
    """A state of a question: `target` in [0, 1] is the mean outcome of the `weight` responses
    through it, or a step's label.

    `square` is the mean of the outcomes' squares, `logprob` (nats) the policy's of the step that
    led here (NaN: unknown), `final` tells that the response ends here.
    """

    target: float
    weight: float
    square: float
    logprob: float = math.nan
    final: bool = False


@dataclass(slots=True)
class Example:
    """A question's distinct states, by the response's tokens down to them, and (better, worse)
    pairs with their margins.
    """

    prompt_ids: StateIds
    states: dict[StateIds, State] = field(default_factory=dict)
    pairs: dict[tuple[StateIds, StateIds], float] = field(default_factory=dict)

    def add(self, token_ids: StateIds, state: State) -> None:
        """Take in a state; one that is known gets the weighted means."""
        known = self.states.setdefault(token_ids, state)
        if known is not state:
            total = known.weight + state.weight
            for name in ("target", "square"):
                mean = (
                    getattr(known, name) * known.weight + getattr(state, name) * state.weight
                ) / total
                setattr(known, name, mean)
            known.weight = total

    def prefer(self, better: StateIds, worse: StateIds, margin: float) -> None:
        """Take in a pair of states, the widest margin that it was met with."""
        self.pairs[better, worse] = max(margin, self.pairs.get((better, worse), 0.0))


def example_of(
    question: Question, student: Student, settings: CriticConfig, *, every_token: bool = False
) -> Example:
    """The nodes of a question's trees, or every token prefix, with their outcomes; and its sibling
    steps whose outcomes differ.
    """
    example = Example(question.prompt_ids or student.prompt_ids(question.text))
    for tree in question.trees():
        for state in value_targets(tree, every_token=every_token):
            node = state.node
            logprob = math.fsum(tree.logprobs[node]) if node else math.nan
            final = tree.verdict[node] is not None
            example.add(
                state.token_ids, State(state.target, state.weight, state.square, logprob, final)
            )
        for pair in step_preferences(tree, settings.margin, LEAST_OUTCOMES):
            example.prefer(
                pair.prefix_ids + pair.chosen_ids, pair.prefix_ids + pair.rejected_ids, pair.margin
            )
    for preference in question.preferences:
        for better, worse in preference.pairs(student):
            # As sure as a step after which all responses failed.
            for ids, target in ((better, 1.0), (worse, 0.0)):
                final = ids[-1] == student.engine.eos_id
                example.add(ids, State(target, LEAST_OUTCOMES, target, final=final))
            example.prefer(better, worse, 1.0)
    return example


def with_step_labels(example: Example) -> Example:
    """The example with its steps as states: 1 where any response after a step was right (Wang et
    al. 2023, "Math-Shepherd"), 0 where LEAST_OUTCOMES responses or more all failed, else unknown
    (weight 0). Outcomes between wrong and right stay as they are, a mean.
    """
    example.states.pop((), None)  # the prompt is no step
    for state in example.states.values():
        alive = state.target > 0
        if state.square == state.target:  # each outcome is 0 or 1
            state.target = state.square = float(alive)
        state.weight = float(alive or state.weight >= LEAST_OUTCOMES)
    return example


# -- states -> rows --------------------------------------------------------------------------------


def state_rows(example: Example) -> tuple[list[TrainRow], dict[StateIds, tuple[int, int]]]:
    """The longest states of a question as rows, whose weights sum to 1: each question counts the
    same. And where each state is: its row, and how many tokens of the response it has.

    A row has one token more than its state, for a critic's numbers are of the states before tokens.
    A weight of 0 means that a state is no target, or another row's.
    """
    longest: list[StateIds] = []
    places = {}
    # A state comes right after those that begin with it.
    for ids in sorted(example.states, reverse=True):
        if not longest or longest[-1][: len(ids)] != ids:
            longest.append(ids)
        places[ids] = len(longest) - 1, len(ids)
    targets, weights = ([[0.0] * (len(ids) + 1) for ids in longest] for _ in range(2))
    whole = math.fsum(state.weight for state in example.states.values()) or 1.0
    for ids, state in example.states.items():
        row, length = places[ids]
        targets[row][length], weights[row][length] = state.target, state.weight / whole
    rows = [
        state_row(example, ids, tuple(targets[row]), tuple(weights[row]))
        for row, ids in enumerate(longest)
    ]
    return rows, places


def state_row(
    example: Example,
    ids: StateIds,
    targets: PerToken = (),
    weights: PerToken = (),
) -> TrainRow:
    """The state after `ids` as a row; see `state_rows`."""
    prompt = example.prompt_ids
    completion = (*ids, prompt[-1])
    return TrainRow(prompt, completion, (), (), targets=targets, value_weights=weights)


def pair_rows(example: Example, most: int) -> list[list[TrainRow]]:
    """`most` of a question's pairs at most, those with the widest margins: the better state, then
    the worse one.
    """
    widest = sorted(example.pairs, key=lambda pair: -example.pairs[pair])[:most]
    return [[state_row(example, ids) for ids in pair] for pair in widest]


def stack_examples(examples: Sequence[Example]) -> tuple[States, StatePairs]:
    """The states and pairs of all examples as the figures want them, in the examples' order."""
    states: list[State] = []
    questions: list[int] = []
    pairs: list[tuple[int, int, int]] = []
    for number, example in enumerate(examples):
        place = {ids: len(states) + i for i, ids in enumerate(example.states)}
        pairs += [(place[better], place[worse], number) for better, worse in example.pairs]
        states += example.states.values()
        questions += [number] * len(example.states)
    names = ("target", "weight", "square", "logprob", "final")
    by_name = {name: np.array([getattr(state, name) for state in states]) for name in names}
    return States(**by_name, question=np.array(questions)), StatePairs(
        *np.array(pairs, dtype=int).reshape(-1, 3).T
    )
