"""Teachers in a run over a server: what they took is said, kept and gone on with."""

import pytest
from fault_server import FaultServer
from support import grpo_config

from alphazero_llm_trainer.chat import client
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.recorder import Recorder
from alphazero_llm_trainer.runs.run import Run
from alphazero_llm_trainer.runs.start import prepare
from alphazero_llm_trainer.tree.arena import Tree
from alphazero_llm_trainer.tree.journal import read

CALLS = 45


CHECKER = "nvidia/nemotron-nano-9b-v2"


def settings_at(url):
    """A run whose responses mostly are cut: the checker is asked about those."""
    local = {
        "base_url": url,
        "teachers": [{"model": "test/one", "prompt_cost": 2.0, "completion_cost": 10.0}],
        "terminal_checker": {"model": CHECKER, "prompt_cost": 1.0, "completion_cost": 1.0},
    }  # fmt: skip
    words = f"""
        student=embedded teachers.tier=local teachers.terminal_checker=true
        teachers.budget.calls={CALLS} search.max_depth=2 search.simulations=1
        rewards.use_student_model=false train.num_examples=12 train.questions_per_round=4
        train.save_every=4 train.eval_size=4 train.validation_size=0 train.keep_best=false
        train.rows_per_round=4 train.demonstrations=8 train.requeue_limit=0
        train.optimizer.batch_size=5 train.optimizer.epochs=1
    """
    return [{"teacher_tiers": {"local": local}}, *words.split()]


def test_a_stopped_run_says_what_its_teachers_took_and_a_resumed_one_goes_on_with_what_is_left(
    tmp_path, monkeypatch
):
    server = FaultServer(
        lambda number, asked: "500" if number % 5 == 4 else "ok",
        # Sure of itself too early: the rule says that no answer is stated yet.
        lambda asked: "FINISHED" if asked["model"] == CHECKER else "3 + 4 = 7",
        prices={"test/one": (2.0, 10.0), CHECKER: (1.0, 1.0)},
    )
    monkeypatch.setattr(client, "TEACHER_RETRIES", 0)
    with server.running() as url:
        seen = []
        config = grpo_config(settings_at(url))
        folder = RunFolder(tmp_path / "run-001")
        folder.path.mkdir()
        training = Run(prepare(config), stop=lambda: len(seen) >= 3)
        training.load()
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "tree", lambda recorder, tree: seen.append(tree))
            assert training.execute(folder) is None
        stopped = folder.read_card()
        early = len(server.served)
        assert 0 < early < CALLS
        spent = stopped["teacher_budget"]["spent"]
        assert early <= spent["calls"] < CALLS  # one may have been cancelled before it was sent
        both = stopped["teachers"]["test/one"], stopped["terminal_checker"]
        dollars = sum(one["cost"]["dollars"] for one in both)
        assert dollars == pytest.approx(spent["dollars"])
        lost = server.charged()[1] - dollars  # of calls that the stop cancelled under way
        assert 0 <= lost + 1e-12 < dollars / 5
        assert train_main(f"--resume --checkpoint-dir {tmp_path}".split()) == 0
    card = RunFolder(folder.path).read_card()
    assert early < len(server.served) <= CALLS == card["teacher_budget"]["spent"]["calls"]
    both = [card["teachers"]["test/one"], card["terminal_checker"]]
    assert sum(one["cost"]["calls"] for one in both) == CALLS
    assert sum(one["cost"]["dollars"] for one in both) == pytest.approx(server.charged()[1] - lost)
    assert card["teachers"]["test/one"]["mean_value"] is not None
    assert card["teacher_budget"]["refused"] > 0
    # No tree was lost to it.
    records = list(read(folder.journal))
    assert len(records) == 12 and all(Tree.from_dict(record["tree"]).N[0] > 0 for record in records)
