"""What the commands `search`, `info` and `sft` print and write."""

import json

import pytest
from tables import read_json

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.engine import kernel_build
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.student import PACKAGED
from alphazero_llm_trainer.teachers import client

TINY = "--num-examples 4 --eval-size 4 --model embedded --set train.validation_size=0".split()


def test_a_teacher_that_never_answers_does_not_stop_a_run(tmp_path, capsys, monkeypatch):
    """Tier `local` with nothing listening: failures are recorded, the student goes on alone."""
    monkeypatch.setattr(client, "RETRIES", 0)  # each waits for seconds
    config = tmp_path / "teachers.yaml"
    config.write_text(
        "teacher_tiers:\n  local:\n    base_url: http://127.0.0.1:9/v1\n    teachers:\n      - "
        "{model: nobody}\n"
        "teachers: {tier: local, ask: always, timeout_seconds: 1}\n"
    )
    where = f"--checkpoint-dir {tmp_path / 'runs'} --log-interval 2".split()
    assert train_main([*TINY, "--use-grpo", "--config", str(config), *where]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("2/4 questions, ") for line in lines) == 1
    assert sum(line.startswith("4/4 questions, ") for line in lines) == 1
    card = read_json(tmp_path / "runs" / "run-001" / "run.json")
    [ledger] = card["teachers"].values()
    assert sum(ledger["failures"].values()) > 0
    assert card["search_cost"]["sampled_tokens"] > 0


def test_search_prints_the_tree_the_choice_and_the_cost(capsys):
    assert main("search --simulations 3 --model embedded".split()) == 0
    out = capsys.readouterr().out
    assert "root  N=" in out
    assert "tokens sampled" in out
    assert "answer " in out
    assert main("search --simulations 3 --model embedded --json".split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert Tree.from_dict(result["tree"]).N[0] > 0
    assert result["cost"]["sampled_tokens"] > 0


def test_info_says_what_became_of_the_kernels(capsys, monkeypatch):
    def kernels(*flags):
        assert main(["info", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)["kernels"]

    monkeypatch.setattr(kernel_build, "kernels", kernel_build.load_kernels)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert kernels().startswith(
        "transformers instead of C: there is no C compiler 'no-such-compiler'"
    )
    assert kernels("--set", "engine.native=off") == "off (engine.native)"


@pytest.mark.parametrize(
    "words, meant",
    [
        (["trian"], "train"),
        (["train", "--num-exmaples", "5"], "--num-examples"),
        (["search", "q", "--model", "smolm2-135m"], "smollm2-135m"),
        (["eval", "--methods", "gredy"], "greedy"),
        (["search", "q", "--set", "search.simulatons=2"], "search.simulations"),
        (["eval", "--split", "tset"], "test"),
    ],
)
def test_what_is_mistyped_is_named_as_it_is_spelt(words, meant, capsys):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and f"did you mean {meant}?" in capsys.readouterr().err


def test_a_reward_that_is_not_there_is_told_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    def loaded(*given, **named):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("alphazero_llm_trainer.policy.remote.answering_student", loaded)
    file = tmp_path / "my.py"
    file.write_text("def reward(problem, response, task):\n    return 1.0\n")
    # `train` would refuse a reward of expert iteration as well.
    for command in (["eval", "-n", "2", "--methods", "greedy"], ["train", "--num", "2"]):
        assert main([*command, "--model", "embedded", "--reward", f"{file}:rewrad"]) == 2
        assert "has no rewrad" in capsys.readouterr().err


def test_sft_goes_on_from_a_folder(tmp_path, capsys):
    out = tmp_path / "out"
    flags = "--set train.demonstrations=20 --set train.validation_size=8 --eval-size 8".split()
    assert main([*f"sft --model {PACKAGED} --out {out}".split(), *flags]) == 0
    manifest = read_json(out / "manifest.json")
    assert manifest["steps"] == 4  # three passes over 20 rows, 16 an update
    assert (manifest["settings"]["learning_rate"], manifest["settings"]["weight_decay"]) == (
        2e-4,
        0.01,
    )
    assert len(manifest["data_sha256"]) == 64
    assert manifest["started_from"] == str(PACKAGED) and manifest["adapter"] == "full"
    assert "paired gain" in capsys.readouterr().out
    assert main(f"search --model {out} --simulations 2".split()) == 0
