"""The `prm` command: from trees it searches, and from a file of step pairs, to a folder that judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.policy.prm_verifier import FOLDER, load_prm
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.embedded import build
from alphazero_llm_trainer.training.prm_data import encode_step, spoiled_sets
from alphazero_llm_trainer.training.prm_run import other_model
from alphazero_llm_trainer.types import Step
from tests.support import run

QUICK = ["--student", "embedded", "--set", "train.prm.epochs=1", "--set", "train.prm.evaluate_every=50",
         "--set", "train.prm.spoiled=0", "--set", "train.prm.least_outcomes=2",
         "--set", "train.prm.validation_share=0.25", "--set", "train.prm.test_share=0.25"]  # fmt: skip


def pair_file(path: Path, count: int) -> Path:
    """Spoiled demonstrations as lines of text."""
    student = load_student(load_config(None, [{"student": "embedded"}]))
    lines = []
    for one in spoiled_sets([build("train", i, 1) for i in range(count)], student, 1, seed=0):
        for pair in one.pairs:
            texts = [student.decode(ids) for ids in (pair.prefix_ids, pair.chosen_ids, pair.rejected_ids)]
            lines.append(dict(zip(("prompt", "prefix", "chosen", "rejected"), (one.text, *texts), strict=True)))
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.mark.parametrize("extra", [[], ["--kind", "bradley-terry", "--set", "train.prm.trainer=trl",
                                        "--set", "train.prm.logprob=false"]])  # fmt: skip
def test_a_file_of_pairs_becomes_a_verifier(extra: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data, out = pair_file(tmp_path / "pairs.jsonl", 40), tmp_path / "prm"
    assert main(["prm", "--data", str(data), "--out", str(out), *QUICK, *extra]) == 0
    printed = capsys.readouterr().out
    assert "policy log-probability" in printed and "pair accuracy" in printed and "step AUC" in printed
    card = json.loads((out / FOLDER.card).read_text())
    assert card["kind"] == ("bradley-terry" if extra else "implicit") and card["pairs"]["training"] > 20
    config = load_config(None, [{"student": "embedded"}])
    student = load_student(config)
    verifier, task = load_prm(out, student, config), build("test", 1, 1)
    steps = []
    for line in (task.solution or "").split("\n"):
        ids = encode_step(student, line)
        steps.append(Step(ids, tuple(0.0 for _ in ids), student.decode(ids)))
    judged = run(lambda: verifier(task.problem, student.prompt_ids(task.problem.question), steps))
    assert len(judged.steps) == len(steps) and all(0 <= score <= 1 for score in (*judged.steps, judged.total))
    assert main(["prm", "--data", str(data), "--out", str(out), *QUICK]) == 2
    assert "holds a finished prm" in capsys.readouterr().err


def test_it_searches_its_own_trees_and_says_what_they_cost(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    small = [
        "--questions",
        "48",
        "--set",
        "train.prm.iterations=2",
        "--set",
        "train.prm.samples=6",
        "--set",
        "train.prm.temperature=1.4",
    ]
    spoiled = ["--set", "train.prm.spoiled=1", "--set", "train.demonstrations=20"]
    assert main(["prm", "--out", str(tmp_path), *QUICK, *small, *spoiled]) == 0
    card = json.loads((tmp_path / FOLDER.card).read_text())
    assert card["cost"]["sampled_tokens"] > 1000 and card["labels"] == "the worked solution"
    assert sum(card["questions"].values()) == 48 + 20
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 0 and all(line["kind"] == "implicit" for line in lines)


def test_user_errors_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data = pair_file(tmp_path / "pairs.jsonl", 4)
    assert main(["prm", "--data", str(data), "--out", str(tmp_path / "a"), *QUICK]) == 2
    assert "holds 4 questions" in capsys.readouterr().err
    assert main(["prm", "--data", str(data), "--questions", "20", "--out", str(tmp_path / "a"), *QUICK]) == 2
    assert "give one of them" in capsys.readouterr().err
    many = pair_file(tmp_path / "many.jsonl", 30)
    trl = ["--set", "train.prm.trainer=trl"]
    assert main(["prm", "--data", str(many), "--out", str(tmp_path / "b"), *QUICK, *trl]) == 2
    assert "logprob=false" in capsys.readouterr().err


def test_another_students_model_is_no_servers() -> None:
    """`train.prm.base` on servers: they hold the student's base, so the other one is loaded here."""
    student = load_student(load_config(overrides=["student=embedded"]))
    nobody = ["student=embedded", "engine.backend=vllm-server", "engine.vllm.base_url=http://127.0.0.1:9/v1"]
    other = other_model(student, load_config(overrides=nobody), PACKAGED)
    assert other.config.vocab_size == student.model.config.vocab_size and other is not student.model
