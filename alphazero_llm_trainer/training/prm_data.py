"""Where a process reward model's steps and pairs come from: searched trees, spoiled demonstrations, files of labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ..answers import is_final
from ..config.load import Config
from ..config.train import LARGE, PrmConfig
from ..errors import ConfigError, DataError
from ..files import parse_json
from ..mcts.targets import endings, prefixes, step_preferences, value_targets
from ..mcts.tree import ROOT
from ..policy.student import Student
from ..problems.load import tasks_of
from ..problems.source import open_source, source_of
from ..types import Task
from .prm import Ids, LabelledStep, StepPair, StepRow, balanced, pack_steps
from .value_run import Question, read_questions

SPOILED = 3  # wrong steps beside each right one of the embedded student's demonstrations
RATINGS = {1: 1.0, 0: 0.5, -1: 0.0}  # PRM800K: good, neutral, bad


@dataclass(slots=True)
class StepSet:
    """A question's distinct steps, its pairs, and the responses of its trees: the steps of each, its outcome and count.

    `draws[s]` says how many finished responses went through step s; `id` is the problem's, "" where it is unknown.
    """

    text: str
    prompt_ids: Ids
    steps: list[LabelledStep] = field(default_factory=list)
    pairs: list[StepPair] = field(default_factory=list)
    draws: list[float] = field(default_factory=list)
    responses: list[tuple[list[tuple[Ids, Ids]], float, int]] = field(default_factory=list)
    id: str = ""

    @property
    def graded(self) -> bool:
        """Whether an outcome lies between wrong and right."""
        return any(0.0 < outcome < 1.0 for _, outcome, _ in self.responses)

    def row(self) -> StepRow:
        """All steps and pairs; the row's steps are in this set's order."""
        return pack_steps(self.text, self.prompt_ids, self.steps, self.pairs)

    def lean_row(self, most: int) -> StepRow:
        """What is learnt from alone: steps with a weight and at most `most` pairs. A fifth of the tokens of sampled trees."""
        return pack_steps(
            self.text, self.prompt_ids, [step for step in self.steps if step.weight], balanced(self.pairs, most)
        )


def read_sets(paths: Iterable[Path], student: Student, settings: PrmConfig) -> list[StepSet]:
    """The questions of journals, of folders that hold some, and of files with step pairs or human step labels."""
    files: list[Path] = []
    trees: list[Path] = []
    for path in paths:
        (files if path.is_file() and is_label_file(path) else trees).append(path)
    sets = [
        tree_set(question, student, settings) for question in read_questions(trees, student.model.config.vocab_size)
    ]
    found: dict[str, StepSet] = {}
    for path in files:
        for labels in read_labels(path, student):
            known = found.setdefault(labels.text, labels)
            if known is not labels:
                known.steps += labels.steps
                known.pairs += labels.pairs
    for one in found.values():
        one.steps = merged(one.steps)
        one.draws = [1.0] * len(one.steps)
    return [*sets, *found.values()]


# -- trees -------------------------------------------------------------------------------------------------------------


def tree_set(question: Question, student: Student, settings: PrmConfig) -> StepSet:
    """Steps of a question's trees, labelled by the mean outcome of the responses through them.

    A label is learnt from where the prefix can still come out right. Soft labels are the mean outcome, of enough
    responses. Hard ones are the best outcome, 1 where any response was right (Wang et al. 2023, "Math-Shepherd"), and what
    lacks to 1 weighs the more the more responses failed after a prefix that is easy to go on from.
    """
    totals: dict[tuple[Ids, Ids], list[float]] = {}
    best: dict[tuple[Ids, Ids], float] = {}
    pairs, responses = [], []
    for tree in question.trees:
        depths, paths = tree.depths(), prefixes(tree)
        keys = {node: (paths[tree.parent[node]], tuple(tree.token_ids[node])) for node in range(1, len(tree))}
        for state in value_targets(tree):
            if state.node != ROOT and tree.token_ids[state.node]:
                total = totals.setdefault(keys[state.node], [0.0, 0.0])
                total[0] += state.target * state.weight
                total[1] += state.weight
        depth_of = {paths[node]: depths[node] for node in range(len(tree))}
        pairs += [
            StepPair(p.prefix_ids, p.chosen_ids, p.rejected_ids, p.margin, depth_of[p.prefix_ids])
            for p in step_preferences(tree, settings.margin, settings.least_outcomes)
        ]
        for leaf, _, count, outcome in endings(tree):
            chain = []
            node = leaf
            while node != ROOT:
                chain.append(keys[node])
                best[keys[node]] = max(best.get(keys[node], 0.0), outcome)
                node = tree.parent[node]
            responses.append((chain[::-1], outcome, count))
    rates = {prefix + step: good / count for (prefix, step), (good, count) in totals.items()}
    counted = sum(number for _, _, number in responses)
    rates[()] = sum(outcome * number for _, outcome, number in responses) / counted
    steps = []
    for (prefix, step), (good, drawn) in totals.items():
        rate = rates.get(prefix, 0.0)
        if settings.labels == "soft":
            steps.append(LabelledStep(prefix, step, good / drawn, float(rate > 0 and drawn >= settings.least_outcomes)))
        else:
            # A right step would have shown a right response by now with about this probability.
            shown, label = 1.0 - (1.0 - rate) ** drawn, best[prefix, step]
            steps.append(LabelledStep(prefix, step, label, label + (1.0 - label) * shown))
    draws = [count for _, count in totals.values()]
    prompt = student.prompt_ids(question.text)
    return StepSet(question.text, prompt, steps, unique(pairs), draws, responses, question.id)


def unique(pairs: Iterable[StepPair]) -> list[StepPair]:
    """The pairs without those that two trees of a question both gave, the widest margin kept."""
    found: dict[tuple[Ids, Ids, Ids], StepPair] = {}
    for pair in pairs:
        known = found.setdefault((pair.prefix_ids, pair.chosen_ids, pair.rejected_ids), pair)
        if pair.margin > known.margin:
            found[pair.prefix_ids, pair.chosen_ids, pair.rejected_ids] = pair
    return list(found.values())


def merged(steps: Iterable[LabelledStep]) -> list[LabelledStep]:
    """Distinct steps, with the mean of their labels."""
    labels: dict[tuple[Ids, Ids], list[float]] = {}
    for step in steps:
        labels.setdefault((step.prefix_ids, step.step_ids), []).append(step.target)
    return [LabelledStep(prefix, step, sum(t) / len(t)) for (prefix, step), t in labels.items()]


# -- spoiled demonstrations --------------------------------------------------------------------------------------------


def spoiled_sets(tasks: Iterable[Task], student: Student, count: int, seed: int) -> Iterator[StepSet]:
    """Worked solutions: each step is right, and `count` spoiled ones beside it are wrong.

    The student has seen these solutions in its warm-up, so no further gold answer is used.
    """
    for task in tasks:
        text = task.problem.question
        rng = Random(f"{seed}/{task.problem.id}")
        steps, pairs = [], []
        prefix: Ids = ()
        for depth, line in enumerate((task.solution or "").split("\n")):
            good = encode_step(student, line)
            steps.append(LabelledStep(prefix, good, 1.0))
            for wrong in source_of(task.problem).spoiled(line, task.problem, rng, count):
                bad = encode_step(student, wrong)
                steps.append(LabelledStep(prefix, bad, 0.0))
                pairs.append(StepPair(prefix, good, bad, 1.0, depth))
            prefix += good
        yield StepSet(text, student.prompt_ids(text), steps, pairs, [1.0] * len(steps), id=task.problem.id)


def spoiled_demonstrations(student: Student, config: Config, known: set[str]) -> list[StepSet]:
    """The student's own demonstrations with `train.prm.spoiled` wrong steps beside each right one.

    Questions whose text is in `known` are left out. By default the shipped student's are spoiled, on a source that
    replays demonstrations. Raises ConfigError where a source without wrong steps is asked for them.
    """
    source, count = open_source(config), config.train.prm.spoiled
    if count is None:
        # `--model FOLDER` alone leaves the shipped student's description, whatever the folder holds.
        small = sum(p.numel() for p in student.model.parameters()) < LARGE
        count = SPOILED if source.demonstration_share and student.spec.path == "package" and small else 0
    if not (count and config.train.demonstrations):
        return []
    sets = list(spoiled_sets(tasks_of(config, "train", config.train.demonstrations), student, count, config.seed))
    if not any(steps.pairs for steps in sets):
        raise ConfigError(f"train.prm.spoiled is {count} and source {source.name} knows no wrong steps: use 0")
    return [steps for steps in sets if steps.text not in known]


def encode_step(student: Student, line: str) -> Ids:
    """A step's tokens as the student writes them: a line end after a step, the end token after a final answer."""
    line = line.rstrip("\n")
    if is_final(line):
        return (*student.encode(line), student.engine.eos_id)
    return tuple(student.encode(line + "\n"))


# -- files -------------------------------------------------------------------------------------------------------------


def is_label_file(path: Path) -> bool:
    """Whether a file's first line is a step pair or a PRM800K record, and not a journal's."""
    with path.open(encoding="utf-8") as file:
        try:
            first = parse_json(next((line for line in file if line.strip()), "{}"))
        except ValueError:
            return False
    return isinstance(first, dict) and ("chosen" in first or "label" in first)


def read_labels(path: Path, student: Student) -> Iterator[StepSet]:
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


def paired(record: Mapping[str, Any], student: Student) -> StepSet:
    prompt = record["prompt"]
    text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    prompt_ids = student.prompt_ids(prompt) if isinstance(prompt, str) else as_ids(prompt)
    given = record.get("prefix") or ()
    lines = given.split("\n") if isinstance(given, str) else []
    prefix: Ids = () if isinstance(given, str) else as_ids(given)
    for line in lines:
        prefix += encode_step(student, line) if line.strip() else ()
    chosen, rejected = (
        encode_step(student, step) if isinstance(step, str) else as_ids(step)
        for step in (record["chosen"], record["rejected"])
    )
    if not chosen or not rejected or chosen == rejected:
        raise ValueError("chosen and rejected must be two different steps")
    depth = len(student.engine.step_ends.cut(prefix))
    pair = StepPair(prefix, chosen, rejected, float(record.get("margin", 1.0)), depth)
    steps = [LabelledStep(prefix, chosen, 1.0), LabelledStep(prefix, rejected, 0.0)]
    return StepSet(text, prompt_ids, steps, [pair])


def labelled(record: Mapping[str, Any], student: Student) -> StepSet:
    text = record["question"]["problem"]
    steps: list[LabelledStep] = []
    pairs: list[StepPair] = []
    prefix: Ids = ()
    for depth, step in enumerate(record["label"]["steps"]):
        completions = step["completions"] or []
        rated = [
            (encode_step(student, c["text"]), RATINGS[c["rating"]]) for c in completions if c["rating"] is not None
        ]
        steps += [LabelledStep(prefix, ids, label) for ids, label in rated]
        pairs += [
            StepPair(prefix, good, bad, better - worse, depth)
            for good, better in rated
            for bad, worse in rated
            if better > worse and good != bad
        ]
        chosen = step.get("chosen_completion")
        following = completions[chosen] if chosen is not None else step.get("human_completion")
        if following is None:
            break
        prefix += encode_step(student, following["text"])
    return StepSet(text, student.prompt_ids(text), steps, pairs)


def as_ids(given: Sequence[Any]) -> Ids:
    """Token ids of a file."""
    return tuple(int(token) for token in given)
