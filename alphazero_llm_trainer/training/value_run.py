"""From trees to a value folder: read or collect, split by question, train, calibrate, judge, seal."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import numpy as np
import torch
from safetensors.torch import save_file

from ..collect import Collector
from ..config.load import Config
from ..config.train import CollectConfig, JudgeConfig
from ..errors import ConfigError, DataError
from ..eval.metrics import Interval
from ..eval.value_figures import States, ValueVerdict, blend, measure, reliability, verdict
from ..files import sync_all, write_json
from ..live import Progress
from ..mcts.journal import Journal, journals, placed, record_at
from ..mcts.targets import endings, value_targets
from ..mcts.tree import Tree
from ..policy.adapters import VALUE, own_parameters
from ..policy.adapters import fingerprint as base_fingerprint
from ..policy.judge_folder import ADAPTER, JudgeFolder
from ..policy.student import Student
from ..policy.value_function import FOLDER, policy_fingerprint
from ..problems.load import check_train_split
from ..types import Task
from .checkpoint import fingerprint
from .judge import longest, questions_at_once
from .memory import EXTRA_LAYERS
from .models import Economy, bare, checkpoint_layers, make_trainable, save_adapter
from .progress import StepProgress, tell_tree
from .rows import ValueRow, pack_values
from .value import (
    HEAD_FITS,
    Fitted,
    adapter_network,
    hidden_states,
    network_logits,
    new_network,
    train_head,
    train_network,
)

# -- trees -------------------------------------------------------------------------------------------------------------


class SavedTrees(Sequence[Tree]):
    """Trees in journals, each read when it is asked for: in memory are places (journal, byte)."""

    def __init__(self) -> None:
        self.places: list[tuple[Path, int]] = []

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...
    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return Tree.from_dict(record_at(*self.places[index])["tree"])


@dataclass(slots=True)
class Question:
    """A question's text, all the trees that were searched for it, and the id of its problem."""

    text: str
    trees: Sequence[Tree]
    id: str = ""


class Asked(Protocol):
    """What has a question's text."""

    text: str


Q = TypeVar("Q", bound=Asked)


def read_questions(paths: Iterable[Path], vocabulary: int | None = None) -> list[Question]:
    """The questions of journals, and of folders that hold some, with at least one finished response, as they are met.

    Raises DataError for a record of another split than train, without a tree, or with a token that is not one of `vocabulary`.
    """
    found: dict[str, Question] = {}
    saved: dict[str, SavedTrees] = {}
    for path in (file for folder in paths for file in journals(folder)):
        for place, record in placed(path):
            check_train_split(record, path)
            try:
                text, tree = record["problem"]["question"], Tree.from_dict(record["tree"], checked=True)
            except (KeyError, TypeError) as error:
                raise DataError(f"journal {path} has a record without {error}: it holds no graded trees") from error
            check_tokens(tree, vocabulary, path)
            if any(True for _ in endings(tree)):
                trees = saved.setdefault(text, SavedTrees())
                trees.places.append((path, place))
                found.setdefault(text, Question(text, trees, str(record["problem"].get("id", ""))))
    return list(found.values())


def check_tokens(tree: Tree, vocabulary: int | None, path: Path) -> None:
    """Raise DataError for a token that a student with so many tokens has no row for."""
    ids = [*tree.token_ids, *(rollout.token_ids for rollout in tree.rollouts)]
    highest = max((token for one in ids for token in one), default=0)
    if vocabulary is not None and highest >= vocabulary:
        raise DataError(
            f"journal {path} has a tree with token {highest}, and this student has {vocabulary}: name the student that"
            " searched it"
        )


def collect_trees(
    student: Student,
    config: Config,
    collect: CollectConfig,
    tasks: Sequence[Task],
    path: Path,
    stop: Callable[[], bool],
    progress: Progress,
) -> None:
    """Search `tasks` with many samples a tree into the journal `path`; what is there already is not searched again.

    Trees are graded by correctness, and by the user's own reward where there is one.
    """
    groups = {"groups": "tree", "iterations": collect.iterations, "samples": collect.samples, "requeue_iterations": 0}
    settings = config.model_copy(
        update={
            "search": config.search.model_copy(update={"temperature": collect.temperature}),
            "teachers": config.teachers.model_copy(update={"tier": "none", "terminal_checker": False}),
            "train": config.train.model_copy(update=groups),
        }
    )
    journal, policy = Journal(path), policy_fingerprint(student.model)
    if any(record.get("policy") != policy for record in journal.records.values()):
        raise DataError(
            f"journal {path} was searched by another policy than student {student.title}: name another folder"
        )
    missing = [(task.problem.id, task) for task in tasks if task.problem.id not in journal]

    async def search() -> None:
        async for tree in Collector(student, settings, None, stop).collect(missing, config.seed):
            if tree.ended_by != "stopped":
                journal.append(tree.record(policy=policy))
                tell_tree(progress, tree)

    progress.start(len(tasks), len(tasks) - len(missing), doing="searching")
    try:
        if missing:
            asyncio.run(search())
    finally:
        progress.stop()
        journal.close()


def split_by_question(questions: Sequence[Q], validation: float, test: float) -> tuple[list[Q], list[Q], list[Q]]:
    """(training, validation, test) questions; a hash of the text decides, so a question is always on the same side."""
    parts: tuple[list[Q], list[Q], list[Q]] = ([], [], [])
    for question in questions:
        digest = hashlib.blake2b(question.text.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        parts[2 if place < test else 1 if place < test + validation else 0].append(question)
    for name, part in zip(("training", "validation", "test"), parts, strict=True):
        if not part:
            raise DataError(f"of {len(questions)} questions none is left for {name}: collect more trees")
    return parts


# -- rows and states ---------------------------------------------------------------------------------------------------


def value_rows(questions: Iterable[Question], student: Student, every_token: bool) -> list[ValueRow]:
    """One row a question: the states of all its trees in one trie."""
    rows = []
    for question in questions:
        targets = [
            (target.token_ids, target.target, float(target.weight))
            for tree in question.trees
            for target in value_targets(tree, every_token=every_token)
        ]
        rows.append(pack_values(question.text, student.prompt_ids(question.text), targets))
    return rows


def held_out_states(questions: Sequence[Question], student: Student) -> tuple[States, list[ValueRow]]:
    """The states (nodes) of questions as the metrics want them, and rows whose states are in the same order."""
    columns: dict[str, list[Any]] = {name: [] for name in States.__slots__}
    rows, first = [], 0
    for number, question in enumerate(questions):
        triples = []
        for tree in question.trees:
            depth, length, logprob = tree.depths(), [0], [0.0]
            for node in range(1, len(tree)):
                parent = tree.parent[node]
                length.append(length[parent] + len(tree.token_ids[node]))
                logprob.append(logprob[parent] + sum(tree.logprobs[node]))
            for state in value_targets(tree):
                node = state.node
                triples.append((state.token_ids, state.target, float(state.weight)))
                group = first + tree.parent[node] if node else -1
                final = tree.verdict[node] is not None
                entry = (
                    number, group, state.target, state.weight, depth[node], length[node], logprob[node], final,
                    state.square,
                )  # fmt: skip
                for name, field in zip(States.__slots__, entry, strict=True):
                    columns[name].append(field)
            first += len(tree)
        rows.append(pack_values(question.text, student.prompt_ids(question.text), triples))
    return States(*(np.asarray(columns[name]) for name in States.__slots__)), rows


def values_of(
    fitted: Fitted, student: Student, rows: Sequence[ValueRow], size: int, bfloat16: bool = False
) -> np.ndarray:
    """V at every state of `rows`, row after row `[N]`."""
    if fitted.network is not None:
        logits = torch.cat(network_logits(fitted.network, rows, size, bfloat16))
    else:
        states = hidden_states(student.model, rows, size, bfloat16)
        logits = torch.cat([one @ fitted.weight + fitted.bias for one in states])
    return logits.double().sigmoid().numpy()


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Valued:
    """A trained value with its figures on the test questions and the verdict that the validation questions allow.

    `reliability` has (mean V, mean outcome, share) for each tenth of V, on the test questions.
    """

    fitted: Fitted
    figures: dict[str, Interval]
    reliability: list[tuple[float, float, float]]
    verdict: ValueVerdict
    base_rate: float
    questions: dict[str, int]
    data: str


def train_value(
    student: Student,
    config: Config,
    parts: tuple[Sequence[Question], Sequence[Question], Sequence[Question]],
    out: Path,
    watch: Callable[[dict[str, float]], None] = lambda line: None,
    progress: Progress | None = None,
) -> Valued:
    """Train on the first part, stop, calibrate, judge and fit the blend on the second, report on the third."""
    settings = config.train.value
    progress = progress if progress is not None else Progress(quiet=True)
    student.engine.rest()  # nothing is searched from here on
    economy = Economy.of(config, student.spec, student.model)
    bfloat16 = economy.autocast
    training, validation, test = parts
    rows = value_rows(training, student, settings.every_token)
    held_out = value_rows(validation, student, settings.every_token)
    if settings.kind == "head":
        progress.start(HEAD_FITS, unit="fit", doing="head")

        def fit_watch(line: dict[str, float]) -> None:
            progress.advance()
            watch(line)

        fitted = train_head(student.model, rows, held_out, settings, fit_watch, bfloat16)
        progress.wait("measuring")
    else:
        extra = layers_on_top(student, config, settings)
        if student.spec.quantization != "none":
            network = adapter_network(student.model, student.spec.lora)
        else:
            adapter = config.train.adapter or student.spec.adapter
            network = make_trainable(new_network(student.model, extra), student.spec, adapter, task="TOKEN_CLS")
        if economy.checkpointing:
            checkpoint_layers(bare(network))
        common: dict[str, Any] = {"out_dir": out, "seed": config.library_seed, "watch": watch, "bfloat16": bfloat16}
        callbacks = [StepProgress(progress, "network")]
        fitted = train_network(network, rows, held_out, settings, callbacks=callbacks, **common)
    least = settings.least_outcomes
    states, packed = held_out_states(validation, student)
    size = questions_at_once(settings, student.model if fitted.network is None else fitted.network, longest(packed))
    base = base_rate(training)
    value = values_of(fitted, student, packed, size, bfloat16)
    judged = measure(value, states, base, least, config.seed)
    before_end = ~states.final
    fit = blend(value[before_end], states.where(before_end))
    test_states, test_rows = held_out_states(test, student)
    value = values_of(fitted, student, test_rows, size, bfloat16)
    return Valued(
        fitted,
        measure(value, test_states, base, least, config.seed),
        reliability(value, test_states),
        verdict(judged["sibling ranking"], judged["AUC"], fit),
        base,
        dict(zip(("training", "validation", "test"), map(len, parts), strict=True)),
        data_hash(rows),
    )


def layers_on_top(student: Student, config: Config, settings: JudgeConfig) -> int:
    """How many layers a judge has on top of the student's. Raises ConfigError for some over a quantised one."""
    adapter = config.train.adapter or student.spec.adapter
    extra = settings.extra_layers
    if extra is None:
        extra = EXTRA_LAYERS if adapter == "full" else 0
    if student.spec.quantization != "none" and (adapter == "full" or extra):
        raise ConfigError(
            f"student {student.name} is quantised: what judges its steps is an adapter; leave train.adapter=lora and"
            f" train.{settings.section}.extra_layers=null"
        )
    return extra


def base_rate(questions: Iterable[Question]) -> float:
    """The mean outcome of the questions' responses, every question weighing the same."""
    rates = []
    for question in questions:
        roots = [value_targets(tree)[0] for tree in question.trees]
        total = sum(root.weight for root in roots)
        rates.append(sum(root.target * root.weight for root in roots) / total)
    return sum(rates) / len(rates)


def data_hash(rows: Sequence[ValueRow]) -> str:
    """SHA-256 of training rows."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(asdict(row)).encode())
    return digest.hexdigest()


# -- the folder --------------------------------------------------------------------------------------------------------


def save_value(folder: Path, valued: Valued, student: Student, config: Config, facts: Mapping[str, Any]) -> None:
    """Write the value's folder: see `policy.value_function`."""
    fitted = valued.fitted
    shared = fitted.network is not None and own_parameters(student.model, VALUE)
    card = {
        "kind": "network" if fitted.network is not None else "head",
        "hidden_size": int(fitted.weight.numel()),
        "rollout_weight": valued.verdict.rollout_weight,
        "earned": valued.verdict.earned,
        "why": valued.verdict.why,
        "base_rate": valued.base_rate,
        "test": {name: list(astuple(figure)) for name, figure in valued.figures.items()},
        "reliability": [list(point) for point in valued.reliability],
        "best": fitted.best,
        "calibration": {"scale": fitted.scale, "shift": fitted.shift},
        "questions": valued.questions,
        "data_sha256": valued.data,
        "settings": config.train.value.model_dump(mode="json"),
        **facts,
    }
    numbers = {"weight": fitted.weight.contiguous(), "bias": torch.tensor([fitted.bias])}
    save_judge(folder, FOLDER, numbers, fitted.network, VALUE if shared else None, student, config, card)


def save_judge(
    folder: Path,
    form: JudgeFolder,
    numbers: dict[str, torch.Tensor],
    network: Any,
    adapter: str | None,
    student: Student,
    config: Config,
    facts: Mapping[str, Any],
) -> None:
    """Write a judge's files into `folder`, the card with `facts` last: see `policy.judge_folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / form.card).unlink(missing_ok=True)
    save_file(numbers, folder / form.numbers)
    files = [form.numbers, *([] if network is None else save_network(folder, network, student, adapter))]
    card = {
        "policy": policy_fingerprint(student.model),
        "base": base_fingerprint(student.model, None),
        "student": student.name,
        "vocabulary": student.model.config.vocab_size,
        "seed": config.seed,
        **facts,
        "files": {name: fingerprint(folder / name)["sha256"] for name in files},
    }
    sync_all(folder)
    write_json(folder / form.card, card)


def save_network(folder: Path, network: Any, student: Student, adapter: str | None) -> list[str]:
    """The network as a folder of its own kind; one that is an adapter in the student's layers as that."""
    if adapter is not None:
        files = save_adapter(student.model, student.spec.lora, folder / ADAPTER, adapter)
        return [f"{ADAPTER}/{name}" for name in files]
    if hasattr(network, "merge_and_unload"):
        network = network.merge_and_unload()
        # transformers takes a copy of a student that began as an adapter for one that has it still.
        network._hf_peft_config_loaded = False
    # The format that an adapter was loaded from is no model's.
    network.save_pretrained(folder, save_original_format=False)
    student.tokenizer.save_pretrained(folder)
    return ["config.json", "model.safetensors"]
