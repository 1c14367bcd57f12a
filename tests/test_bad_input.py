"""What a user can get wrong ends in one sentence and exit code 2: no traceback, no hang, nothing half written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import a_job
from fuzz import FINISHED

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.folders import check_folder
from alphazero_llm_trainer.scale.sample import run_sample

DEEP = "[" * 100_000
SHIPPED = Path(__file__).parents[1] / "alphazero_llm_trainer" / "assets" / "student"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence that a command line is refused with."""
    capsys.readouterr()
    try:
        code: Any = main(words)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert said.startswith("error: ") and "\n" not in said and len(said) < 1000, said
    return said


# -- the command line --------------------------------------------------------------------------------------------------

LINES: dict[str, tuple[list[str], str]] = {
    "digits": (["info", "--set", "seed=" + "9" * 5000], "seed"),
    "hexadecimal digits": (["info", "--set", "seed=0x" + "f" * 5000], "seed is a number of thousands of digits"),
    "digits for a section": (["info", "--set", "train=0x" + "f" * 5000], "train is a number of thousands of digits"),
    "digits of an option": (["info", "--seed", "9" * 5000], "--seed"),
    "more questions than there can be": (["train", "--dry-run", "-n", "1" + "0" * 25], "train.num_examples"),
    "a long name of a value": (["search", "1?", "--set", "search.value=" + "v" * 5000], "vvv"),
    "a folder as a data set of the hub": (["search", "--source", "hub:../.."], "hub:OWNER/NAME"),
    "brackets": (["info", "--set", "seed=" + "[" * 3000], "seed"),
    "a date that is none": (["info", "--set", "seed=2020-13-45"], "seed"),
    "a long value": (["info", "--set", "seed=" + "x" * 100_000], "seed"),
    "a seed of 2^63": (["info", "--seed", str(2**63)], "seed"),
    "a truth value as a seed": (["info", "--set", "seed=true"], "seed is True"),
    "a truth value as a count": (["info", "--set", "train.num_examples=true"], "train.num_examples"),
    "a NUL": (["info", "--set", 'dataset.path="a\\0b"'], "dataset.path"),
    "a section of 1": (["info", "--set", "train=1", "--seed", "3", "--set", "train.num_examples=4"], "train is 1"),
    "no section": (["info", "--set", "train=", "--set", "train.num_examples=4"], "train is None"),
    "no such home": (
        ["search", "--source", "gsm8k", "--set", "dataset.path=~nobody-here/x"],
        "~nobody-here",
    ),
    "no such home of a model": (["search", "--model", "~nobody-here/x"], "~nobody-here"),
    "no such home of a file": (["search", "--source", "~nobody-here/x.jsonl"], "~nobody-here"),
    "an empty question": (["search", ""], "empty"),
    "a question that nobody sees": (["search", "\u200b"], "no letter that can be seen"),
    "more trees than memory holds": (["sample", "-n", "10" * 6, "--out", "nowhere"], "10,000,000 at most"),
    "a lone surrogate": (["search", "what is \udc81?"], "Unicode"),
    "a long name": (["train", "--dry-run", "--set", "train.checkpoint_dir=" + "c" * 300], "can't be written"),
    "a long name to resume": (["train", "--resume", "r" * 300], "rrr"),
    "a long name of a journal": (["view", "j" * 300], "jjj"),
    "a long name of data": (["value", "--data", "d" * 300], "ddd"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_command_line_that_cannot_be(case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words, named = LINES[case]
    assert named in refused(capsys, *words)


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63 - 1])
def test_a_seed_of_63_bits_is_one_for_every_library(seed: int) -> None:
    library = load_config(overrides=[f"seed={seed}"]).library_seed
    np.random.RandomState(library)  # refuses one of 33 bits, as transformers' set_seed does
    assert seed >= 2**32 or library == seed


@pytest.mark.slow
def test_a_seed_of_63_bits_trains(tmp_path: Path) -> None:
    small = ["-n", "2", "--eval-size", "1", "--set", "train.validation_size=0", "--set", "train.demonstrations=0"]
    assert main(["-q", "train", "--out", str(tmp_path), *small, "--seed", str(2**63 - 1)]) == 0


def test_a_configuration_that_never_ends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A pipe that nobody writes into would be waited for; a chain of aliases would be printed for hours."""
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(capsys, "info", "--config", str(tmp_path / "pipe"))
    bomb = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)] + ["seed: *a59"]
    (tmp_path / "bomb.yaml").write_text("\n".join(bomb))
    refused(capsys, "info", "--config", str(tmp_path / "bomb.yaml"))
    (tmp_path / "deep.yaml").write_text("seed: " + DEEP)
    assert "deep.yaml" in refused(capsys, "info", "--config", str(tmp_path / "deep.yaml"))


@pytest.mark.parametrize("section", ["train", "search", "engine", "models", "teacher_tiers"])
@pytest.mark.parametrize("value", ["5", "null", "[]", "text"])
def test_a_section_that_is_no_mapping(
    section: str, value: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A flag of the same section must not put a fresh one in its place."""
    (tmp_path / "c.yaml").write_text(f"{section}: {value}\n")
    flags = ["--set", f"{section}.x=1"] if section in ("models", "teacher_tiers") else []
    words = ["train", "--dry-run", "--config", str(tmp_path / "c.yaml"), "-n", "4", *flags]
    assert f"{section} is " in refused(capsys, *words)


# -- files of others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [DEEP, '{"question": ' + DEEP, '{"question": "\\ud800 apples?", "answer": "#### 3"}', "\\udcff"],
    ids=range(4),
)
@pytest.mark.parametrize("source", ["gsm8k", "file"])
def test_a_row_that_is_none(row: str, source: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    good = json.dumps({"question": "1 and 2 apples?", "answer": "1 + 2 = 3\n#### 3"})
    for split in ("train", "test"):
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join([row, *[good] * 20]) + "\n")
    named = ["gsm8k", "--set", f"dataset.path={tmp_path}"]
    if source == "file":
        named = [str(tmp_path / "gsm8k" / "train.jsonl")]
    out = str(tmp_path / "out")
    said = refused(capsys, "-q", "sample", "--model", "embedded", "--out", out, "-n", "9", "--source", *named)
    assert "line 1" in said or "Unicode" in said


def student(tmp_path: Path) -> Path:
    folder = tmp_path / "student"
    shutil.copytree(SHIPPED, folder)
    return folder


def test_a_tokenizer_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = student(tmp_path)
    (folder / "tokenizer.json").write_text('{"x":1}')
    assert "tokenizer" in refused(capsys, "search", "1 and 2?", "--path", str(folder))


@pytest.mark.parametrize(
    "path, value",
    [(("model",), None), (("model", "vocab"), {"a": "b"}), (("model", "vocab"), {})],
    ids=["no model", "texts as ids", "no words"],
)
def test_a_tokenizer_that_is_another(
    path: tuple[str, ...], value: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = student(tmp_path)
    given = json.loads((folder / "tokenizer.json").read_text())
    put(*path, value=value)(given)
    if not value:
        given["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(given))
    assert "tokenizer" in refused(capsys, "search", "1 and 2?", "--path", str(folder))
    (folder / "tokenizer.json").write_text(DEEP)
    assert "tokenizer" in refused(capsys, "search", "1 and 2?", "--path", str(folder))


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("max_position_embeddings", 0),
        ("hidden_size", "x"),
        ("rms_norm_eps", "x"),
        ("vocab_size", True),
    ],
)
def test_a_model_of_impossible_sizes(name: str, value: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = student(tmp_path)
    given = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**given, name: value}))
    assert name in refused(capsys, "search", "1 and 2?", "--path", str(folder))


def test_sizes_that_some_architectures_have(tmp_path: Path) -> None:
    """Not each has every number, and some have one a layer."""
    sizes = {"intermediate_size": [256, 512], "head_dim": None, "rms_norm_eps": None, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    check_folder(tmp_path)


def test_weights_that_are_no_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = student(tmp_path)
    weights = {name: tensor * float("nan") for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "not finite" in refused(capsys, "search", "1 and 2?", "--path", str(folder))


def test_a_file_where_a_folder_goes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for words in (["sft"], ["sample", "-n", "1"], ["value"], ["prm"], ["eval"]):
        assert "taken" in refused(capsys, *words, "--out", str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "mine"


# -- journals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 12 small trees of the embedded student."""
    folder = tmp_path_factory.mktemp("trees")
    run_sample(a_job(12), folder)
    return folder


def deep(record: dict[str, Any], *path: Any) -> tuple[Any, Any]:
    for part in path[:-1]:
        record = record[part]
    return record, path[-1]


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        inner, last = deep(record, *path)
        inner[last] = value

    return change


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        inner, last = deep(record, *path)
        del inner[last]

    return change


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "no tree": without("tree"),
    "a list as tree": put("tree", value=[1]),
    "a text as tree": put("tree", value="tree"),
    "no problem": without("problem"),
    "a problem of another type": put("problem", value=3),
    "a question that is a number": put("problem", "question", value=5),
    "no prompt": without("prompt_ids"),
    "a prompt of texts": put("prompt_ids", value=["a"]),
    "a prompt below 0": put("prompt_ids", value=[-1]),
    "an ended_by of another type": put("ended_by", value=7),
    "a cost that is a list": put("cost", "sampled_tokens", value=[1]),
    "a cost beyond numbers": put("cost", "sampled_tokens", value=float("inf")),
    "a policy_version of another type": put("policy_version", value=[1]),
    "a search of another type": put("search", value={"exploration": [2]}),
    "numbers as text": put("tree", "text", 1, value=5),
    "ids as text": put("tree", "token_ids", 1, value=["5", "6"]),
    "an id as text": put("tree", "token_ids", 1, value="56"),
    "ids below 0": put("tree", "token_ids", 1, 0, value=-3),
    "ids of 2^40": put("tree", "token_ids", 1, 0, value=2**40),
    "truth values as ids": put("tree", "token_ids", 1, 0, value=True),
    "texts as log-probabilities": put("tree", "logprobs", 1, 0, value="x"),
    "a log-probability less": put("tree", "logprobs", 1, value=[]),
    "a parent that is a text": put("tree", "parent", 1, value="0"),
    "visits that are texts": put("tree", "N", 1, value="x"),
    "visits below 0": put("tree", "N", 1, value=-1),
    "a verdict that is a number": put("tree", "verdict", -1, value=5),
    "a reward that is a text": put("tree", "reward", -1, value="good"),
    "rollouts of another type": put("tree", "rollouts", value=3),
    "a rollout of numbers": put("tree", "rollouts", value=[[0, [1], [0.0], 5, 6, 7, 8, 9, 10, 11]]),
    "a history of another type": put("tree", "history", value=[1]),
    "columns of another type": put("tree", "text", value=5),
}  # fmt: skip


def changed(trees: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the journal as one file, whose third record is changed."""
    lines = [json.loads(line) for path in sorted(trees.glob("shard-*")) for line in path.read_text().splitlines()]
    change(lines[2])
    folder = tmp_path / "changed"
    folder.mkdir()
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("case", CHANGES)
def test_a_record_that_is_none(case: str, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` refuses it, as `value` and `prm` do, which read it the same way; `view` draws what it can draw."""
    folder = changed(trees, tmp_path, CHANGES[case])
    said = refused(capsys, "export", "--data", str(folder), "--kind", "value", "--out", str(tmp_path / "x.parquet"))
    assert "journal.jsonl line 3" in said or "embedded/train/2/2003" in said
    assert not (tmp_path / "x.parquet").exists()
    try:
        code: Any = main(["view", str(folder)])
    except SystemExit as stop:
        code = stop.code
    assert code in (0, 2)


def test_tokens_beyond_the_student(trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(trees, tmp_path, put("tree", "token_ids", 1, 0, value=50_000))
    for command in ("value", "prm"):
        said = refused(capsys, command, "--model", "embedded", "--data", str(folder), "--out", str(tmp_path / command))
        assert "50000" in said


@pytest.mark.parametrize("command", ["export", "view"])
@pytest.mark.parametrize("line", [DEEP, "\\xff", "3", '{"key": 5}', '"' + "x" * 100_000 + '"'], ids=range(5))
def test_a_line_that_is_none(
    command: str, line: str, trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(line.encode().replace(b"\\xff", b"\xff\xfe") + b"\n")
    words = {"view": [str(folder)]}.get(command, ["--data", str(folder), "--out", str(tmp_path / "out")])
    words += ["--kind", "sft"] if command == "export" else []
    assert "line 1" in refused(capsys, command, *words)


def test_a_folder_as_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    refused(capsys, "view", str(tmp_path))
    refused(capsys, "view", str(tmp_path / "journal.jsonl"))
    refused(capsys, "export", "--data", str(tmp_path), "--kind", "sft", "--out", str(tmp_path / "x.parquet"))


def test_a_manifest_without_a_policy(trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trees, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json.before").unlink()
    for name in ("policy", "shards", "config"):
        (folder / "manifest.json").write_text(
            json.dumps({k: v for k, v in manifest.items() if k not in (name, "sha256")})
        )
        words = ["--model", "embedded", "--resume", "-n", "12", "--start", "2000"]
        assert "manifest.json" in refused(capsys, "-q", "sample", "--out", str(folder), *words)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "test.jsonl"])
@pytest.mark.parametrize("text", [DEEP.encode(), b"\xff\xfe\n", b"3\n", b"", b"[1]\n"], ids=range(5))
def test_a_run_s_file_that_is_none(name: str, text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--resume` and `report` read a run's folder; an empty file of lines is no mistake."""
    run = tmp_path / "run-001"
    run.mkdir()
    card = {"config": {}, "method": "grpo"}
    (run / "run.json").write_text(json.dumps(card))
    (run / name).write_bytes(text)
    said = refused(capsys, "report", str(run))
    assert "run" in said
    if name == "run.json":
        assert "run.json" in refused(capsys, "train", "--resume", str(run))


@pytest.mark.parametrize("config", [5, None, [1], {"search": 5}, {"train": True}])
def test_a_card_without_a_configuration(config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run-001"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"config": config, "method": "grpo"}))
    (run / "journal.jsonl").write_text("")
    refused(capsys, "train", "--resume", str(run))
    refused(capsys, "view", str(run))


@pytest.mark.parametrize("name", [*FINISHED, "teachers"])
@pytest.mark.parametrize("value", [5, None, [1], "x"], ids=["number", "none", "list", "text"])
def test_runs_that_cannot_be_compared(
    name: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A card whose parts are of another type is one sentence, or is read where the type doesn't matter."""
    for folder, card in (("one", FINISHED), ("other", {**FINISHED, name: value})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(json.dumps(card))
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    assert main(["compare", one, one]) == 0
    capsys.readouterr()
    try:
        code: Any = main(["compare", one, other])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err.strip()
    assert code in (0, 2) and "\n" not in said
    assert code == 0 or "other" in said
    if name in ("after", "seconds", "search_cost", "gain"):
        assert code == 2


def test_a_run_with_fewer_outcomes_than_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, right in (("one", [True, False]), ("other", [])):
        (tmp_path / folder).mkdir()
        card = {**FINISHED, "after": {**FINISHED["after"], "correct": right}}
        (tmp_path / folder / "run.json").write_text(json.dumps(card))
    assert "0 outcomes of 2" in refused(capsys, "compare", str(tmp_path / "one"), str(tmp_path / "other"))


def test_a_pipe_as_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "run.json")
    assert "run.json" in refused(capsys, "report", str(tmp_path))
