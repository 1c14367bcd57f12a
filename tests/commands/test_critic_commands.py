"""`value` and `prm` from end to end: they search, train, report, stop and go on; and `eval` searches
under what they made.
"""

import json

import pytest
from tables import read_json

import alphazero_llm_trainer as az
from alphazero_llm_trainer import live
from alphazero_llm_trainer.cli import base as cli
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.learning.learner import Learner
from alphazero_llm_trainer.mcts.journal import read
from alphazero_llm_trainer.mcts.tree import ROOT
from alphazero_llm_trainer.problems.load import load_tasks

QUICK = """
    --model embedded -n 60 --set search.simulations=2 --set search.samples=6 --set
    train.optimizer.epochs=1 --set train.critic.least_outcomes=2 --set train.critic.margin=0.25
""".split()


@pytest.mark.parametrize("kind", ["value", "prm"])
def test_the_command_searches_trains_and_reports(kind, tmp_path, capsys):
    out = tmp_path / kind
    assert main([kind, "--out", str(out), *QUICK]) == 0
    printed = capsys.readouterr()
    # Six validation questions say nothing.
    assert printed.out.startswith("Not better than chance: don't use it")
    assert "AUC" in printed.out and "pair accuracy" in printed.out
    assert ("lambda" in printed.out) == (kind == "value")
    assert "60 of 60 questions have a tree" in printed.err and "held out " in printed.err
    assert {file.name for file in out.iterdir()} >= {
        "journal.jsonl", "metrics.jsonl", "report.html", "trees.html", "critic.json", "critic.safetensors",
        "config.json", "model.safetensors",
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == [out]  # nothing outside the out folder
    assert {"loss", "held_out_loss"} <= json.loads(
        (out / "metrics.jsonl").read_text().splitlines()[0]
    ).keys()
    assert read_json(out / "critic.json")["kind"] == kind
    assert main([kind, "--out", str(out), *QUICK]) == 2
    assert "holds critic.json" in capsys.readouterr().err
    # The journal alone gives the same critic again, bit for bit.
    again = tmp_path / "again"
    assert main([*f"{kind} --data {out} --out {again}".split(), *QUICK[:2], *QUICK[4:]]) == 0
    for name in ("critic.safetensors", "model.safetensors"):
        assert (again / name).read_bytes() == (out / name).read_bytes()


def test_eval_searches_under_a_value_as_search_does(tmp_path):
    value, out = tmp_path / "value", tmp_path / "eval"
    assert main(["value", "--out", str(value), *QUICK]) == 0
    size = "--set search.mode=token --set search.simulations=9".split()
    words = f"eval -n 6 --methods mcts --verifier none --value {value}".split()
    assert main([*words, *size, *f"--budget-tokens 2000 --out {out}".split()]) == 0
    [row] = read_json(out / "results.json")["rows"]
    found = [
        az.search(
            task.problem,
            model="embedded",
            mode="token",
            simulations=9,
            value=value,
            progress=False,
        )
        for task in load_tasks("embedded", "test", 6)
    ]
    assert row["scored_tokens"] == sum(one.cost.scored_tokens for one in found) / 6 > 0
    assert row["sampled_tokens"] == sum(one.cost.sampled_tokens for one in found) / 6
    assert all(one.tree.V[ROOT] is not None for one in found) and row["unjudged"] == 0
    rolled = az.search("2 + 2?", model="embedded", value=value, select="ucb1", rollout="sample")
    assert rolled.rule["rule"] == "ucb1" and len(list(rolled.tree.finished())) > 1


def test_a_stopped_command_goes_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "value"
    command = ["value", "--out", str(out), *QUICK, "--set", "search.concurrent=4"]
    asked = iter([False] * 30)
    monkeypatch.setattr(live.Stop, "__call__", lambda self: next(asked, True))
    assert main(command) == cli.EXIT_STOPPED
    assert "stopped while searching; the same command goes on" in capsys.readouterr().err
    searched = len((out / "journal.jsonl").read_text().splitlines())
    assert 0 < searched < 60
    # Then in training: what was searched is kept.
    monkeypatch.undo()
    real, trained = Learner.step, []

    def step(learner):
        trained.append(learner)
        real(learner)

    monkeypatch.setattr(Learner, "step", step)
    monkeypatch.setattr(live.Stop, "__call__", lambda self: bool(trained))
    assert main(command) == cli.EXIT_STOPPED
    assert "stopped while training" in capsys.readouterr().err and len(trained) == 1
    monkeypatch.undo()
    assert (
        len((out / "journal.jsonl").read_text().splitlines()) == 60
        and not (out / "critic.json").exists()
    )
    monkeypatch.undo()
    assert main(command) == 0
    tokens = sum(record["cost"]["sampled_tokens"] for record in read(out / "journal.jsonl"))
    assert read_json(out / "critic.json")["sampled_tokens"] == tokens > 0
