"""Training a process reward model: Bradley-Terry on pairs of steps after one prefix, by TRL's reward trainer.

`-log sigmoid(r_better - r_worse)`, r being the score at a step's last token. The pairs come from searched trees, from
JSONL files of pairs, from human step labels (PRM800K), and from demonstrations with wrong steps beside the right ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase
from trl import RewardConfig, RewardTrainer

from ..answers import is_final
from ..config.load import Config
from ..config.train import CriticConfig
from ..errors import DataError
from ..files import parse_json
from ..policy.adapters import bind
from ..policy.student import Student
from ..problems.load import tasks_of
from ..problems.source import open_source
from .critic import arguments, forward_size
from .critic_data import Example, Ids, State, read_questions, tree_example

RATINGS = {1: 1.0, 0: 0.5, -1: 0.0}  # PRM800K: good, neutral, bad

MOST_PAIRS = 16  # of a question that are learnt from; the widest margins


def read_examples(paths: Iterable[Path], student: Student, settings: CriticConfig) -> list[Example]:
    """The questions of journals, of folders that hold some, and of files with step pairs or human step labels."""
    files: list[Path] = []
    trees: list[Path] = []
    for path in paths:
        (files if path.is_file() and is_label_file(path) else trees).append(path)
    questions = read_questions(trees, student.model.config.vocab_size)
    examples = [with_step_labels(tree_example(one, student, settings), settings.least_outcomes) for one in questions]
    found: dict[str, Example] = {}
    for path in files:
        for one in read_labels(path, student):
            known = found.setdefault(one.text, one)
            if known is not one:
                for ids, state in one.states.items():
                    known.add(ids, state)
                known.pairs |= one.pairs
    return [*examples, *found.values()]


def with_step_labels(example: Example, least: int) -> Example:
    """The example with its steps as states: 1 where any response after a step was right (Wang et al. 2023,
    "Math-Shepherd"), 0 where `least` responses or more all failed, else unknown (weight 0). Outcomes between wrong and
    right stay as they are, a mean."""
    example.states.pop((), None)  # the prompt is no step
    for state in example.states.values():
        alive = state.target > 0
        if state.square == state.target:  # each outcome is 0 or 1
            state.target = state.square = float(alive)
        state.weight = float(alive or state.weight >= least)
    return example


def spoiled_examples(student: Student, config: Config, known: set[str]) -> list[Example]:
    """Demonstrations, in which each step is right and `train.critic.spoiled` wrong ones beside it are not.

    The student has seen these solutions in its warm-up, so no further gold answer is used. Questions whose text is in
    `known` are left out, and so is a source that replays no demonstrations or knows no wrong steps.
    """
    source, count = open_source(config), config.train.critic.spoiled
    if not (count and source.demonstration_share and config.train.demonstrations):
        return []
    found = []
    for task in tasks_of(config, "train", config.train.demonstrations):
        text, rng = task.problem.question, Random(f"{config.seed}/{task.problem.id}")
        example = Example(text, student.prompt_ids(text))
        prefix: Ids = ()
        for line in (task.solution or "").split("\n"):
            right = prefix + encode_step(student, line)
            example.add(right, State(1.0, square=1.0))
            for wrong in source.spoiled(line, task.problem, rng, count):
                ids = prefix + encode_step(student, wrong)
                example.add(ids, State(0.0))
                example.prefer(right, ids, 1.0)
            prefix = right
        if example.pairs and text not in known:
            found.append(example)
    return found


# -- files -------------------------------------------------------------------------------------------------------------


def is_label_file(path: Path) -> bool:
    """Whether a file's first line is a step pair or a PRM800K record, and not a journal's."""
    with path.open(encoding="utf-8") as file:
        try:
            first = parse_json(next((line for line in file if line.strip()), "{}"))
        except ValueError:
            return False
    return isinstance(first, dict) and ("chosen" in first or "label" in first)


def read_labels(path: Path, student: Student) -> Iterator[Example]:
    """Each line of a JSONL file as a question's steps: a pair (`prompt`, `prefix`, `chosen`, `rejected`; text or token
    ids), or a record of PRM800K's second phase (Lightman et al. 2023) with its human ratings -1, 0 and 1.

    Raises DataError naming file, line and fix.
    """
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            yield labelled(record, student) if "label" in record else paired(record, student)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DataError(
                f"{path} line {number} is no step pair and no PRM800K record ({type(error).__name__}: {error}): give"
                " prompt, prefix, chosen and rejected, or question.problem and label.steps"
            ) from error


def paired(record: Mapping[str, Any], student: Student) -> Example:
    """A line of prompt, prefix, chosen and rejected."""
    prompt, prefix = record["prompt"], record.get("prefix") or ()
    text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    before: Ids = ()
    if isinstance(prefix, str):
        for line in filter(str.strip, prefix.split("\n")):
            before += encode_step(student, line)
    else:
        before = as_ids(prefix)
    chosen, rejected = (
        before + (encode_step(student, step) if isinstance(step, str) else as_ids(step))
        for step in (record["chosen"], record["rejected"])
    )
    if before in (chosen, rejected) or chosen == rejected:
        raise ValueError("chosen and rejected must be two different steps")
    example = Example(text, student.prompt_ids(prompt) if isinstance(prompt, str) else as_ids(prompt))
    example.add(chosen, State(1.0, square=1.0))
    example.add(rejected, State(0.0))
    example.prefer(chosen, rejected, 1.0)
    return example


def labelled(record: Mapping[str, Any], student: Student) -> Example:
    """A record of PRM800K: the steps along the chosen completions, and the pairs that their ratings make."""
    text = record["question"]["problem"]
    example = Example(text, student.prompt_ids(text))
    prefix: Ids = ()
    for step in record["label"]["steps"]:
        completions = step["completions"] or []
        rated = {
            prefix + encode_step(student, one["text"]): RATINGS[one["rating"]]
            for one in completions
            if one["rating"] is not None
        }
        for ids, rating in rated.items():
            example.add(ids, State(rating, square=rating**2))
            for other, lower in rated.items():
                if rating > lower:
                    example.prefer(ids, other, rating - lower)
        chosen = step.get("chosen_completion")
        following = completions[chosen] if chosen is not None else step.get("human_completion")
        if following is None:
            break
        prefix += encode_step(student, following["text"])
    return example


def encode_step(student: Student, line: str) -> Ids:
    """A step's tokens as the student writes them: a line end after a step, the end token after a final answer."""
    line = line.rstrip("\n")
    if is_final(line):
        return (*student.encode(line), student.engine.eos_id)
    return tuple(student.encode(line + "\n"))


def as_ids(given: Sequence[Any]) -> Ids:
    """Token ids of a file."""
    return tuple(int(token) for token in given)


# -- the trainer -------------------------------------------------------------------------------------------------------


def pair_rows(example: Example, most: int) -> list[dict[str, list[int]]]:
    """At most `most` of a question's pairs, those of the widest margins, as TRL takes token ids: from the prompt on.

    Its text path would put an end token after every step.
    """
    widest = sorted(example.pairs, key=lambda pair: -example.pairs[pair])[:most]
    return [
        {"chosen_ids": [*example.prompt_ids, *better], "rejected_ids": [*example.prompt_ids, *worse]}
        for better, worse in widest
    ]


def prm_trainer(
    network: Any,
    adapter: bool,
    examples: Sequence[Example],
    student: Student,
    config: Config,
    out: Path,
    bfloat16: bool = False,
) -> RewardTrainer:
    """TRL's reward trainer over `network`'s own layers."""
    rows = [row for one in examples for row in pair_rows(one, MOST_PAIRS)]
    # A pair is two sequences.
    size = forward_size(config, network, max(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows))
    given = arguments(config, network, adapter, len(rows), size, out, bfloat16)
    return RewardTrainer(
        model=sequence_classifier(network, student, adapter),
        args=RewardConfig(**given, max_length=None),
        train_dataset=Dataset.from_list(rows),
        processing_class=student.tokenizer,
    )


def sequence_classifier(network: Any, student: Student, adapter: bool) -> Any:
    """TRL's view of a critic: the score of a whole sequence is that of its last token. It shares all of `network`'s weights."""
    tokenizer: PreTrainedTokenizerBase = student.tokenizer
    shape = copy.deepcopy(network.config)
    shape.num_labels, shape.pad_token_id, shape.architectures = 1, tokenizer.pad_token_id, None
    with torch.device("meta"):
        model: Any = AutoModelForSequenceClassification.from_config(shape)
    setattr(model, model.base_model_prefix, network.base_model)
    model.score = network.score
    if adapter:
        bind(model, student.model, "prm")
    return model
