"""What a user can get wrong ends in one sentence and exit code 2: no traceback, nothing half
written.
"""

import json
import shutil
from pathlib import Path

import pytest
from faults import a_job

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.scale.sample import run_sample

SHIPPED = Path(__file__).parents[1] / "alphazero_llm_trainer" / "assets" / "student"


def refused(capsys, *words):
    """The one sentence that a command line is refused with."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    [said] = [
        line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading")
    ]
    assert code == 2, said
    assert said.startswith("error: ") and len(said) < 1000, said
    return said


# -- rows and models -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        '{"question": ',
        '{"question": "\\ud800 apples?", "answer": "#### 3"}',
    ],
)
def test_a_row_that_is_none(row, capsys, tmp_path):
    (tmp_path / "gsm8k").mkdir()
    good = json.dumps({"question": "1 and 2 apples?", "answer": "1 + 2 = 3\n#### 3"})
    for split in ("train", "test"):
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join([row, *[good] * 20]) + "\n")
    out = str(tmp_path / "out")
    for named in (
        f"gsm8k --set problems.path={tmp_path}".split(),
        [str(tmp_path / "gsm8k" / "train.jsonl")],
    ):
        said = refused(
            capsys,
            "-q",
            "sample",
            "--model",
            "embedded",
            "--out",
            out,
            "-n",
            "9",
            "--source",
            *named,
        )
        assert "line 1" in said or "Unicode" in said


def student(tmp_path):
    folder = tmp_path / "student"
    shutil.copytree(SHIPPED, folder)
    return folder


def test_weights_that_are_no_numbers(capsys, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = student(tmp_path)
    weights = {
        name: tensor * float("nan")
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "not finite" in refused(capsys, "search", "1 and 2?", "--model", str(folder))


# -- journals and run folders ----------------------------------------------------------------------

CHANGES = {
    "a text as tree": (("tree",), "tree"),
    "a log-probability less": (("tree", "logprobs", 1), []),
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """The lines of a journal of 4 small trees of the embedded student."""
    folder = tmp_path_factory.mktemp("trees")
    run_sample(a_job(4), folder)
    return (folder / "journal.jsonl").read_text().splitlines()


def changed(lines, folder, path, value):
    """A journal whose third record is changed."""
    record = inner = json.loads(lines[2])
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    (folder / "journal.jsonl").write_text(
        "\n".join([*lines[:2], json.dumps(record), *lines[3:]]) + "\n"
    )
    return folder


@pytest.mark.parametrize("case", CHANGES)
def test_a_record_that_is_none(case, lines, tmp_path, capsys):
    """`export` refuses it, as `value` and `prm` do, which read it the same way."""
    folder = changed(lines, tmp_path, *CHANGES[case])
    said = refused(
        capsys,
        "export",
        "--data",
        str(folder),
        "--kind",
        "value",
        "--out",
        str(tmp_path / "x.parquet"),
    )
    assert "journal.jsonl line 3" in said or "search it again" in said
    assert not (tmp_path / "x.parquet").exists()


def test_tokens_beyond_the_student(lines, tmp_path, capsys):
    folder = changed(lines, tmp_path, ("tree", "token_ids", 1, 0), 50_000)
    for command in ("value", "prm"):
        said = refused(
            capsys,
            command,
            "--model",
            "embedded",
            "--data",
            str(folder),
            "--out",
            str(tmp_path / command),
        )
        assert "50000" in said
