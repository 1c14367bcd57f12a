"""What may be anything: configurations, journals, manifests, rows, requests, answers of teachers and command lines.

A target is (what hypothesis draws, what is done with it). Whatever is drawn, the target returns, or raises the one kind of
error that a user gets as a sentence. `tests/test_fuzz.py` runs each for seconds, `benchmarks/attack.py` for minutes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from alphazero_llm_trainer.cli.export import Readers, rows
from alphazero_llm_trainer.cli.main import build_parser
from alphazero_llm_trainer.config.load import load_config, read_yaml, shipped
from alphazero_llm_trainer.config.sections import ProblemsConfig
from alphazero_llm_trainer.errors import AlphaZeroError
from alphazero_llm_trainer.eval.cells import Cell
from alphazero_llm_trainer.eval.results import CELL, read_cell, summary
from alphazero_llm_trainer.files import json_hash, read_object
from alphazero_llm_trainer.mcts.journal import Journal, line_of, read
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.folders import check_folder
from alphazero_llm_trainer.problems.files import from_rows, read_file
from alphazero_llm_trainer.report.compare import comparison_page, comparison_text, load_runs
from alphazero_llm_trainer.report.folder import write_report
from alphazero_llm_trainer.report.trees import EMBEDDED, TreeReader, find_source
from alphazero_llm_trainer.scale.sample_folder import SampleFolder
from alphazero_llm_trainer.serve.failures import ApiError
from alphazero_llm_trainer.serve.wanted import ChatBody, CompletionBody, parsed
from alphazero_llm_trainer.teachers.answer import CallError, read_answer
from alphazero_llm_trainer.training.checkpoint import newest_whole, read_manifest, write_manifest
from alphazero_llm_trainer.training.run import RunFolder
from alphazero_llm_trainer.types import RewardParts, Step
from alphazero_llm_trainer.viewer.page import run_page

LONGEST_SECONDS = 5.0

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, 1, -1, 2**31, 2**32, 2**63, 1e39, 1e-39, 0.5]),
)
texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "",
            "null",
            "true",
            "2e-5",
            "~nobody-here/x",
            "a\0b",
            "[" * 2000,
            "9" * 5000,
            "0x" + "f" * 5000,
            "../..",
            "é" * 300,
        ]
    ),
)
plain = st.one_of(st.none(), st.booleans(), numbers, texts)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    found = [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        found += nodes(one, (*path, name))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any, remove: bool) -> Any:
    """A copy of `value` with `new` at `path`, or without what is there."""
    if not path:
        return new
    copy = json.loads(json.dumps(value))
    inner = copy
    for part in path[:-1]:
        inner = inner[part]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copy


def changed(value: Any) -> SearchStrategy[Any]:
    """A JSON value with something else in one place, as often near its top as anywhere."""
    places = nodes(value)
    near = [path for path in places if len(path) <= 2]
    paths = st.one_of(st.sampled_from(near), st.sampled_from(places))
    return st.builds(put, st.just(value), paths, anything, st.booleans())


def spoiled(text: bytes) -> SearchStrategy[bytes]:
    """Bytes with some of them cut, flipped or put in."""
    places = st.integers(0, len(text))
    return st.one_of(
        st.builds(lambda at: text[:at], places),
        st.builds(lambda at, new: text[:at] + new + text[at + len(new) :], places, st.binary(max_size=8)),
        st.binary(max_size=200),
    )


def written(value: Any) -> SearchStrategy[bytes]:
    """A JSON text of a changed value, or a spoiled one."""
    whole = json.dumps(value).encode()
    return st.one_of(changed(value).map(lambda new: json.dumps(new).encode()), spoiled(whole))


# -- things to change --------------------------------------------------------------------------------------------------


@functools.cache
def record() -> dict[str, Any]:
    """A journal's record with two responses."""
    tree = Tree()
    first = tree.attach(0, Step((5, 6), (-0.5, -0.25), "1 + 2 = 3\n"))
    for number, text in enumerate(("#### 3", "#### 4")):
        leaf = tree.attach(first, Step((7 + number,), (-0.125,), text))
        tree.finish(leaf, "answer", RewardParts(total=1.0 - number, hre=1.0 - number))
        tree.samples[leaf] += 1
        tree.backup(leaf, 1.0 - number)
        tree.simulated(leaf)
    problem = {"id": "p/0", "question": "1 and 2?", "source": "embedded"}
    return {"key": "p/0", "problem": problem, "ended_by": "iterations", "policy_version": 0, "prompt_ids": [1, 2],
            "cost": {"sampled_tokens": 4}, "split": "train", "search": {"rule": "puct", "exploration": 2.0}, "chosen": 2,
            "answer": "3", "why": "vote", "response": "1 + 2 = 3\n#### 3", "pieces": {"5": "1"},
            "tree": tree.to_dict()}  # fmt: skip


IDENTITY = {"config": {"seed": 1}, "source": "embedded", "split": "train", "start": 0, "seed": 1, "mode": "step"}
MANIFEST = {"format": 1, "status": "running", **IDENTITY, "questions": 3, "policy": {"name": "x"},
            "shards": [], "totals": {}, "set_aside": 0}  # fmt: skip
CHAT = {"model": "student", "messages": [{"role": "user", "content": "1 and 2?"}], "max_tokens": 5, "temperature": 0.5,
        "stop": ["\n"], "stream": True, "stream_options": {"include_usage": True}, "seed": 3}  # fmt: skip
ANSWER = {"choices": [{"message": {"content": "3 + 4 = 7"}, "finish_reason": "stop"}],
          "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}}  # fmt: skip
FINISHED: dict[str, Any] = {
    "method": "grpo",
    "student": "embedded",
    "seed": 7,
    "questions": 4,
    "kept": "last",
    "seconds": {"training": 1.0},
    "search_cost": {"sampled_tokens": 5, "dollars": 0.0},
    "config": {"problems": {"source": "embedded", "levels": None}, "dataset": {}, "train": {"validation_size": 0}},
    "gain": {"value": 0.0, "low": 0.0, "high": 0.0},
    **{
        when: {
            "accuracy": {"value": 0.5, "low": 0.1, "high": 0.9},
            "correct": [True, False],
            "problems": 2,
            "tokens": 4,
        }
        for when in ("before", "after")
    },
}
ROWS = {"question": "1 and 2?", "answer": "3", "solution": "1 + 2 = 3", "choices": ["1", "3"], "split": "train"}


CELL_FIGURES = Cell("embedded", "greedy", 60, "10", {"correct": 1, "wrong": 1}, {"finished": 2}, [20, 27]).as_dict()


@functools.cache
def card() -> dict[str, Any]:
    return {"config": load_config().model_dump(mode="json"), "method": "grpo"}


@functools.cache
def flags() -> list[str]:
    """Every option of every command."""
    parser: Any = build_parser()
    every = [parser, *parser.commands.choices.values()]
    return sorted({name for one in every for action in one._actions for name in action.option_strings})


# -- targets -----------------------------------------------------------------------------------------------------------


def in_folder(run: Callable[[Path, Any], None]) -> Callable[[Any], None]:
    """`run` with a folder of its own."""

    def target(given: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="alphazero-fuzz-") as folder:
            run(Path(folder), given)

    return target


def configure(given: Any) -> None:
    load_config(overrides=[given])


def configure_by_file(folder: Path, given: bytes) -> None:
    (folder / "c.yaml").write_bytes(given)
    load_config(folder / "c.yaml")


def read_journal(folder: Path, given: bytes) -> None:
    (folder / "journal.jsonl").write_bytes(given + b"\n")
    found = list(read(folder / "journal.jsonl"))
    for kind in ("value", "preferences", "sft", "policy"):
        list(rows(found, Readers(least=1).of(kind)))


def view(folder: Path, given: bytes, name: str) -> None:
    (folder / name).write_bytes(given + b"\n")
    source = find_source(folder / name)
    run_page(map(TreeReader(source, None), source), title="t", limit=9)


def resume_journal(folder: Path, given: bytes) -> None:
    whole = line_of({"key": "before"})
    (folder / "journal.jsonl").write_bytes(whole + given + b"\n" + line_of({"key": "after"}))
    journal = Journal(folder / "journal.jsonl")
    journal.close()
    assert "before" in journal.records


def resume_sample(folder: Path, given: bytes) -> None:
    (folder / "manifest.json").write_bytes(given)
    sample = SampleFolder(folder, IDENTITY, 3, 10, resume=True)
    try:
        sample.begin({"name": "x"})
        sample.end("stopped")
    finally:
        sample.release()


def resume_run(folder: Path, given: bytes) -> None:
    (folder / "run.json").write_bytes(given)
    RunFolder(folder).config()


def compare_runs(folder: Path, given: bytes) -> None:
    for name, text in (("one", json.dumps(FINISHED).encode()), ("other", given)):
        (folder / name).mkdir()
        (folder / name / "run.json").write_bytes(text)
    runs = load_runs([folder / "one", folder / "other"])
    comparison_text(runs)
    comparison_page(runs)


def report_run(folder: Path, given: bytes) -> None:
    (folder / "run.json").write_bytes(given)
    write_report(folder)
    (folder / "journal.jsonl").write_bytes(line_of(record()))
    write_report(folder)


def open_model(folder: Path, given: bytes) -> None:
    (folder / "config.json").write_bytes(given)
    check_folder(folder)


def open_cell(folder: Path, given: bytes) -> None:
    (folder / "cell.json").write_bytes(given)
    summary(read_cell(folder / "cell.json", CELL))


def read_metrics(folder: Path, given: bytes) -> None:
    (folder / "metrics.jsonl").write_bytes(given + b"\n")
    run = RunFolder(folder)
    run.read_metrics()
    run.forget_metrics_from(3)


def open_checkpoint(folder: Path, given: bytes) -> None:
    inner = folder / "checkpoint-4"
    inner.mkdir()
    (inner / "weights.bin").write_bytes(b"12345")
    write_manifest(inner, {"rounds_done": 1})
    (inner / "alphazero.json").write_bytes(given)
    newest_whole(folder, lambda text: None)
    read_manifest(inner)


def open_rows(folder: Path, given: bytes) -> None:
    (folder / "rows.jsonl").write_bytes(given + b"\n" + json.dumps(ROWS).encode())
    from_rows({"": read_file(folder / "rows.jsonl")}, ProblemsConfig(), "rows.jsonl")


def ask(given: bytes) -> None:
    for kind in (ChatBody, CompletionBody):
        with contextlib.suppress(ApiError):
            parsed(kind, given)


def hear(given: bytes) -> None:
    with contextlib.suppress(CallError):
        read_answer(given, "name")


def parse_line(given: list[str]) -> None:
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        build_parser().parse_args(given)


class Target(NamedTuple):
    draws: Callable[[], SearchStrategy[Any]]
    run: Callable[[Any], None]


def tried(target: Target, drawn: Any) -> None:
    """Do with what was drawn what the target does. Fails for an error of another kind, and where it computes for too long;
    the clock alone says little on a busy machine."""
    began, worked = time.perf_counter(), time.thread_time()
    with contextlib.suppress(*REFUSALS):
        target.run(drawn)
    assert time.thread_time() - worked < LONGEST_SECONDS, "it took too long"
    assert time.perf_counter() - began < 12 * LONGEST_SECONDS, "it hung"


def words() -> SearchStrategy[list[str]]:
    parser: Any = build_parser()
    word = st.one_of(st.sampled_from(flags()), st.sampled_from(sorted(parser.commands.choices)), texts)
    return st.lists(word.filter(lambda one: "\0" not in one), max_size=8)


def overrides() -> SearchStrategy[Any]:
    keys = st.sampled_from([path for path in nodes(read_yaml(shipped("training.yaml"))) if path])
    dotted = st.builds(
        lambda path, value: f"{'.'.join(map(str, path))}={value}", keys, st.one_of(texts, plain.map(str))
    )
    return st.one_of(
        dotted, texts, changed(read_yaml(shipped("training.yaml"))).filter(lambda new: isinstance(new, dict))
    )


def yaml_files() -> SearchStrategy[bytes]:
    whole = shipped("training.yaml").read_bytes()
    return st.one_of(spoiled(whole), spoiled(whole[:200]), texts.map(lambda text: text.encode(errors="replace")))


TARGETS = {
    "configuration": Target(overrides, configure),
    "configuration file": Target(yaml_files, in_folder(configure_by_file)),
    "journal": Target(lambda: written(record()), in_folder(read_journal)),
    "journal's page": Target(lambda: written(record()), in_folder(functools.partial(view, name="journal.jsonl"))),
    "search's page": Target(lambda: written(record()), in_folder(functools.partial(view, name="search.json"))),
    "journal to resume": Target(lambda: spoiled(line_of(record())[:-1]), in_folder(resume_journal)),
    "manifest of sample": Target(lambda: written(MANIFEST), in_folder(resume_sample)),
    "run.json": Target(lambda: written(card()), in_folder(resume_run)),
    "finished runs": Target(lambda: written(FINISHED), in_folder(compare_runs)),
    "a run's page": Target(lambda: written(FINISHED), in_folder(report_run)),
    "model": Target(lambda: written(read_object(EMBEDDED / "config.json")), in_folder(open_model)),
    "cell": Target(lambda: written({**CELL_FIGURES, "sha256": json_hash(CELL_FIGURES)}), in_folder(open_cell)),
    "metrics": Target(lambda: written({"round": 1, "loss": 0.5}), in_folder(read_metrics)),
    "checkpoint": Target(lambda: written({"rounds_done": 1, "files": {"weights.bin": {}}}), in_folder(open_checkpoint)),
    "rows": Target(lambda: written(ROWS), in_folder(open_rows)),
    "request": Target(lambda: written(CHAT), ask),
    "teacher's answer": Target(lambda: written(ANSWER), hear),
    "command line": Target(words, parse_line),
}
REFUSALS = (AlphaZeroError,)  # what a user gets as one sentence
