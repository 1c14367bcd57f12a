"""The `eval` command: a run, a run that is cut off and goes on, and every kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.eval import evaluation as eval_run
from alphazero_llm_trainer.eval.methods import METHODS
from alphazero_llm_trainer.eval.names import METHOD_NAMES
from alphazero_llm_trainer.live import StoppedError

SMALL = ["eval", "--num", "12", "--model", "embedded", "--budget-tokens", "60", "120"]
SHORT = [*SMALL, "--methods", "greedy", "best-of-n", "mcts", "--samples", "2"]


def results(out: Path) -> dict:
    """results.json without what a clock or a path decides."""
    found = json.loads((out / "results.json").read_text())
    for row in found["rows"]:
        row.pop("seconds")
    found.pop("command")
    return found


def test_every_method_has_its_name() -> None:
    assert set(METHOD_NAMES) == set(METHODS)


def test_a_run_writes_its_folder_and_prints_the_tables(tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert main([*SMALL, "--out", str(out), "--samples", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("embedded at 60 tokens: ") and "pass@k" in said
    found = json.loads((out / "results.json").read_text())
    assert {(row["method"], row["budget"]) for row in found["rows"]} == {
        (m, b) for m in METHODS for b in (60, 120)
    }
    for row in found["rows"]:
        assert len(row["outcomes"]) == 12 and row["most_tokens"] <= row["budget"]
        assert row["outcomes"].count("1") / 12 == row["accuracy"][0]
    names = {path.name for path in out.iterdir()}
    assert names == {"cells", "results.json", "report.html"}


def test_choices_are_made_on_other_problems_than_the_test(tmp_path, capsys) -> None:
    hashes = set()
    for split in ("test", "validation"):
        out = tmp_path / split
        assert (
            main(["eval", "-n", "3", "--methods", "greedy", "--split", split, "--out", str(out)])
            == 0
        )
        hashes.add(
            json.loads((out / "results.json").read_text())["benchmarks"]["embedded"]["data_hash"]
        )
    assert len(hashes) == 2
    assert "embedded, validation problems, at 200 tokens" in capsys.readouterr().out
    assert main(["eval", "--split", "dev"]) == 2
    assert (
        "--split is 'dev': input should be 'train', 'validation', 'arena' or 'test'"
        in capsys.readouterr().err
    )


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path, capsys, monkeypatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    combined = [*SHORT, "--verifier", "calculator+log-probability"]
    assert main([*combined, "--out", str(whole)]) == 0
    # Stopped inside the third cell.
    real, started = eval_run.run_cell, []

    async def stopped_in_the_third(context, benchmark, method, budget, progress, custom):
        started.append(method)
        cell = await real(context, benchmark, method, budget, progress, custom)
        if len(started) == 3:
            raise StoppedError
        return cell

    monkeypatch.setattr(eval_run, "run_cell", stopped_in_the_third)
    assert main([*combined, "--out", str(cut)]) == 130
    assert "--resume" in capsys.readouterr().err
    assert len(list((cut / "cells").iterdir())) == 2 and not (cut / "results.json").exists()
    monkeypatch.setattr(eval_run, "run_cell", real)
    assert main([*combined, "--out", str(cut)]) == 0
    assert results(cut) == results(whole)


def test_methods_may_be_added_and_settings_may_not_change(tmp_path, capsys) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main([*SMALL, "--methods", "greedy", *out]) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").iterdir()}
    assert main([*SMALL, "--methods", "greedy", "majority", *out, "--resume"]) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 4
    capsys.readouterr()
    for flags, words in (
        (["--resume", "--num", "13"], "num is 13"),
        (["--resume", "--set", "search.verify.patience=9"], "search.verify.patience is 9"),
        ([], "--resume"),
    ):
        assert main([*SMALL, "--methods", "greedy", *out, *flags]) == 2
        assert words in capsys.readouterr().err


def test_the_default_folder_is_numbered(tmp_path) -> None:
    numbered = [*SMALL, "--methods", "greedy", "--set", f"train.checkpoint_dir={tmp_path}"]
    assert main(numbered) == 0 and main(numbered) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval-001", "eval-002"]
    assert main([*numbered, "--resume"]) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "guess"], ["--methods", "guess", "step-rejection"]),
        (["--source", "sudoku"], ["sudoku", "embedded"]),
        (["--budget-tokens", "0"], ["--budget-tokens", "0"]),
        (["--verifier", "oracle"], ["--verifier", "oracle"]),
        (["--verifier", "value"], ["--value"]),
        (["--verifier", "value", "--value", "nowhere"], ["--value nowhere", "the command value"]),
    ],
)
def test_bad_input_is_one_sentence(flags, words, tmp_path, capsys) -> None:
    assert (
        main(["eval", "--num", "2", "--model", "embedded", "--out", str(tmp_path / "out"), *flags])
        == 2
    )
    said = capsys.readouterr().err.strip()
    assert (
        said.startswith("error: ")
        and len(said.splitlines()) == 1
        and all(word in said for word in words)
    )
