"""`value` and `prm` from end to end: they search, train, report, stop and go on; and `eval`
searches under what they made.
"""

from functools import partial

import pytest
from tables import read_json, read_jsonl

import alphazero_llm_trainer as az
from alphazero_llm_trainer import live
from alphazero_llm_trainer.cli import base as cli
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.learning.learner import Learner
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.tree.arena import ROOT

LEARNT = """
    --model embedded --set train.optimizer.epochs=1 --set train.critic.margin=0.25
""".split()
QUICK = [*"-n 60 --set search.simulations=2 --set search.samples=6".split(), *LEARNT]


@pytest.fixture(scope="module", params=["value", "prm"])
def made(request, tmp_path_factory):
    """A critic's kind and folder."""
    out = tmp_path_factory.mktemp("critics") / request.param
    assert main([request.param, "--out", str(out), *QUICK]) == 0
    return request.param, out


def test_the_command_searches_trains_and_reports(made, tmp_path, capsys):
    kind, out = made
    # The journal alone gives the same critic again, bit for bit.
    again = tmp_path / "again"
    assert main([*f"{kind} --data {out} --out {again}".split(), *LEARNT]) == 0
    for name in ("critic.safetensors", "model.safetensors"):
        assert (again / name).read_bytes() == (out / name).read_bytes()
    assert [*tmp_path.iterdir()] == [again]  # nothing outside the out folder
    printed = capsys.readouterr()
    # Six validation questions say nothing.
    assert printed.out.startswith("Not better than chance: don't use it")
    assert "AUC" in printed.out and "pair accuracy" in printed.out and "held out " in printed.err
    assert ("lambda" in printed.out) == (kind == "value")
    files = """
        journal.jsonl metrics.jsonl report.html trees.html critic.json critic.safetensors
        config.json model.safetensors
    """.split()
    assert {*files} <= {file.name for file in out.iterdir()}
    assert read_jsonl(out / "metrics.jsonl")[0].keys() >= {"loss", "held_out_loss"}
    assert read_json(out / "critic.json")["kind"] == kind
    assert main([kind, "--out", str(out), *QUICK]) == 2
    assert "holds critic.json" in capsys.readouterr().err


@pytest.mark.parametrize("made", ["value"], indirect=True)
def test_eval_searches_under_a_value_as_search_does(made, tmp_path):
    (_, value), out = made, tmp_path / "eval"
    assert (
        main(
            f"""
        eval -n 6 --methods mcts --verifier none --value {value} --budget-tokens 2000 --out {out}
        --set search.mode=token --set search.simulations=9
    """.split()
        )
        == 0
    )
    [row] = read_json(out / "results.json")["rows"]
    search = partial(az.search, model="embedded", value=value, progress=False)
    tasks = load_tasks("embedded", "test", 6)
    found = [search(task.problem, mode="token", simulations=9) for task in tasks]
    assert row["scored_tokens"] == sum(one.cost.scored_tokens for one in found) / 6 > 0
    assert row["sampled_tokens"] == sum(one.cost.sampled_tokens for one in found) / 6
    assert all(one.tree.V[ROOT] is not None for one in found) and row["unjudged"] == 0
    rolled = search("2 + 2?", select="ucb1", rollout="sample")
    assert rolled.rule["rule"] == "ucb1" and len([*rolled.tree.finished()]) > 1


def test_a_stopped_command_goes_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "value"
    command = ["value", "--out", str(out), *QUICK, "--set", "search.concurrent=4"]
    asked = iter([False] * 30)
    with monkeypatch.context() as patch:
        patch.setattr(live.Stop, "__call__", lambda self: next(asked, True))
        assert main(command) == cli.EXIT_STOPPED
    assert "stopped while searching; the same command goes on" in capsys.readouterr().err
    assert 0 < len(read_jsonl(out / "journal.jsonl")) < 60
    # Then in training: what was searched is kept.
    real, trained = Learner.step, []

    def step(learner):
        trained.append(learner)
        real(learner)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", step)
        patch.setattr(live.Stop, "__call__", lambda self: bool(trained))
        assert main(command) == cli.EXIT_STOPPED
    assert "stopped while training" in capsys.readouterr().err and len(trained) == 1
    trees = read_jsonl(out / "journal.jsonl")
    assert len(trees) == 60 and not (out / "critic.json").exists()
    assert main(command) == 0
    tokens = sum(record["cost"]["sampled_tokens"] for record in trees)
    assert read_json(out / "critic.json")["sampled_tokens"] == tokens > 0
