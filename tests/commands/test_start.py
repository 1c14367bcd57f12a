"""`train --dry-run`: what a run would do and take, and why it can't start."""

import json
from contextlib import nullcontext

import pytest
import torch
from support import grpo_config
from tables import read_jsonl, table, write_jsonl

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.errors import ConfigError, TrainingError
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.learning.size import RunSize
from alphazero_llm_trainer.policy import student
from alphazero_llm_trainer.problems.embedded_source import Embedded
from alphazero_llm_trainer.runs import start
from alphazero_llm_trainer.runs.fit import plan_updates
from alphazero_llm_trainer.runs.preflight import affordable_questions, check_learnable
from alphazero_llm_trainer.runs.start import load_run

CASES = table("start")

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """An empty working folder, an empty hub cache and no token."""
    from huggingface_hub import constants

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    return work


def one_sentence(text):
    assert text.startswith("error: ") and text.count("\n") == 1, text
    return text


@NO_CUDA
def test_a_dry_run_prints_everything_and_says_why_it_can_not_start(nowhere, capsys):
    flags = "--model llama-3.2-3b --use-grpo --set teachers.tier=production".split()
    said = []
    for more in (["--dry-run"], []):  # the run itself ends with the same words
        assert train_main([*flags, *more]) == 2
        said.append(capsys.readouterr())
        assert [*nowhere.iterdir()] == []
    for what in ("50 rounds of 96", "6.4 GB", "OPENROUTER_API_KEY"):
        assert what in said[0].out, what
    assert "OPENROUTER_API_KEY" in one_sentence(said[0].err) and said[1].err == said[0].err


def test_a_dry_run_of_a_resumed_run_is_of_that_run(nowhere, capsys):
    def dry(*flags, code=0):
        assert train_main(["--resume", "--dry-run", *flags]) == code
        said = capsys.readouterr()
        return one_sentence(said.err) if code else said.out

    assert "found no run" in dry(code=2)
    config = grpo_config(["student=embedded", "train.num_examples=192", "train.eval_size=50"])
    run = nowhere / "checkpoints" / "run-001"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"config": config.model_dump(mode="json")}))
    for more in ([], "--model embedded --num-examples 192 --eval-size 50".split()):
        said = dry(*more)
        assert said.startswith("goes_on_with: checkpoints/run-001") and "questions: 192" in said
    said = dry("--num-examples", "96", code=2)
    assert "train.num_examples is 96, the run in checkpoints/run-001 has 192" in said
    said = dry("--seed", "9", code=2)
    # What wasn't asked for isn't named.
    assert "seed is 9, the run in checkpoints/run-001 has 7" in said and "train." not in said


def test_weights_beyond_memory_are_refused(monkeypatch):
    config = grpo_config(["student=embedded"])
    for free, fits in ((1 << 18, False), (1 << 40, True)):
        monkeypatch.setattr(student, "device_memory", lambda free=free: ("cpu", free, free))
        with nullcontext() if fits else pytest.raises(ConfigError, match="GiB of weights"):
            start.check_start(config)


@pytest.mark.parametrize(
    "overrides, rounds, questions, rows, updates",
    CASES["sizes"],
)
def test_a_run_has_the_size_that_its_settings_say(overrides, rounds, questions, rows, updates):
    config = grpo_config(["student=embedded", *overrides])
    size = RunSize(config, method_of(config.train.method).supervised)
    assert (size.rounds, size.questions_per_round, size.rows_per_round) == (rounds, questions, rows)
    assert size.updates_per_round == updates
    shrunk = questions < min(config.train.questions_per_round, config.train.num_examples)
    assert (f"train.save_every={config.train.save_every}" in size.planned) == shrunk


def test_a_warm_up_of_more_than_a_quarter_of_the_run_is_refused():
    """It was cut to a quarter without a word; a recipe's own is, in a short run."""
    asked = ["student=embedded", "train.num_examples=256", "train.save_every=32"]
    usual = RunSize(grpo_config(asked), supervised=False)
    assert usual.rounds == 8 and usual.warmup == usual.updates // 4
    two = RunSize(grpo_config([*asked, "train.optimizer.warmup=2"]), supervised=False)
    assert two.warmup == 2 * two.updates_per_round
    with pytest.raises(ConfigError, match=r"warmup is 3, and .* at most: set 2 or less"):
        RunSize(grpo_config([*asked, "train.optimizer.warmup=3"]), supervised=False)
    with pytest.raises(ConfigError, match=r"warmup is 2, and .* at most: leave it out"):
        RunSize(grpo_config([*asked, "train.num_examples=96", "train.optimizer.warmup=2"]), False)
    few = grpo_config(["train.sft_steps=40", "train.optimizer.warmup=11"])
    with pytest.raises(ConfigError, match=r"warmup is 11, and .* at most: set 10 or less"):
        plan_updates(few, 16, 1e-3)


# -- what a run begins with ------------------------------------------------------------------------


def test_a_run_takes_the_questions_there_are_unless_told(nowhere, capsys):
    def questions(*flags):
        assert main([*"train --dry-run --json --model embedded".split(), *flags]) == 0
        return json.loads(capsys.readouterr().out)["questions"]

    rows = ({"question": f"{number} and {number}?", "answer": "4"} for number in range(60))
    write_jsonl(nowhere / "60.jsonl", rows)
    few = questions("--source", "60.jsonl")
    assert 40 < few < 60
    assert questions("--source", "60.jsonl", "-n", "20") == 20
    # Endless sources: what the recipe says.
    assert questions() == questions("--source", "numbers") == 4800
    (nowhere / "own.yaml").write_text("train: {num_examples: 60}")
    assert main("train --dry-run --source 60.jsonl --config own.yaml".split()) == 2
    assert f"--num {few} or fewer" in one_sentence(capsys.readouterr().err)


@pytest.mark.parametrize("flags, sizes", CASES["measured"])
def test_what_a_run_measures_follows_its_questions(flags, sizes):
    config = load_run(None, ["student=embedded", *flags])
    found = [affordable_questions(config), config.train.eval_size, config.train.validation_size]
    assert found == sizes


# -- the pre-flight --------------------------------------------------------------------------------


def test_a_preflight_changes_nothing_of_the_run(tmp_path, capsys):
    flags = """
        train --model embedded -n 8 --eval-size 4 --set train.validation_size=4
        --set train.questions_per_round=4
    """.split()
    found = []
    for count in (8, 0):
        out = tmp_path / str(count)
        assert main([*flags, *f"--out {out} --set train.preflight={count}".split()]) == 0
        said, run = capsys.readouterr().err, out / "run-001"
        for told in ("pre-flight, 8 responses: ", "a response to each of 8 questions: "):
            assert (told in said) == (count > 0)
        trees = read_jsonl(run / "journal.jsonl")
        for record in trees:
            record["cost"].pop("seconds")
            record.pop("sha256", None)
            record.pop("hash", None)
        found.append((trees, (run / "student" / "model.safetensors").read_bytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("responses, right, unstated, tokens, said", CASES["preflights"])
def test_a_preflight_stops_what_would_learn_nothing(responses, right, unstated, tokens, said):
    found = (responses, right, unstated, tokens)
    if said is None:
        check_learnable(grpo_config(), *found)
        return
    with pytest.raises(TrainingError, match=said):
        check_learnable(grpo_config(), *found)
    if responses:
        check_learnable(grpo_config(["rewards.custom=reward.py:f"]), *found)


def test_a_preflight_refuses_a_source_that_names_two_states_alike(tmp_path, capsys, monkeypatch):
    def name_state(self, problem, steps):
        return "begun" if len(steps) == 1 else " | ".join(steps)

    monkeypatch.setattr(Embedded, "state", name_state)
    flags = f"--model embedded -n 2000 --set train.preflight=64 --out {tmp_path / 'out'}"
    assert main(["train", *flags.split()]) == 2
    assert "`state` of source 'embedded' says 'begun' after " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_would_learn_nothing_ends_before_its_folder(tmp_path, capsys):
    flags = f"train --model embedded -n 4 --eval-size 2 --out {tmp_path / 'out'}".split()
    short = "--set search.max_tokens=2 --set train.validation_size=0".split()
    assert main([*flags, *short]) == 2
    said = capsys.readouterr().err
    assert "error: pre-flight: of 4 responses none is right and all were cut" in said
    assert not (tmp_path / "out").exists()
