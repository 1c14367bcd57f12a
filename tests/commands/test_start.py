"""`train --dry-run`: what a run would do and take, and why it can't start."""

import json
from contextlib import nullcontext

import pytest
import torch
from support import grpo_config
from tables import read_jsonl, table

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.errors import ConfigError, TrainingError
from alphazero_llm_trainer.learning.methods.registry import method_of
from alphazero_llm_trainer.learning.size import RunSize
from alphazero_llm_trainer.policy import student
from alphazero_llm_trainer.runs import start
from alphazero_llm_trainer.runs.preflight import affordable, check
from alphazero_llm_trainer.runs.start import load_run

CASES = table("start")

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
HUB = ["--model", "llama-3.2-3b"]


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
    assert train_main([*HUB, *"--use-grpo --dry-run --set teachers.tier=production".split()]) == 2
    said = capsys.readouterr()
    for what in (
        "50 of 96 questions",
        "6.4 GB",
        "OPENROUTER_API_KEY",
    ):
        assert what in said.out, what
    assert "OPENROUTER_API_KEY" in one_sentence(said.err)
    assert list(nowhere.iterdir()) == []
    # The run itself ends with the same words, before it makes a folder.
    assert train_main([*HUB, "--use-grpo", "--set", "teachers.tier=production"]) == 2
    assert capsys.readouterr().err == said.err
    assert list(nowhere.iterdir()) == []


def test_a_dry_run_of_a_resumed_run_is_of_that_run(nowhere, capsys):
    flags = "--model embedded --num-examples 192 --eval-size 50".split()
    assert train_main(["--resume", "--dry-run"]) == 2
    assert "found no run" in one_sentence(capsys.readouterr().err)
    config = grpo_config(["student=embedded", "train.num_examples=192", "train.eval_size=50"])
    run = nowhere / "checkpoints" / "run-001"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"config": config.model_dump(mode="json")}))
    for more in ([], flags):
        assert train_main(["--resume", "--dry-run", *more]) == 0
        said = capsys.readouterr().out
        assert said.startswith("goes_on_with: checkpoints/run-001") and "questions: 192" in said
    assert train_main("--resume --dry-run --num-examples 96".split()) == 2
    assert "train.num_examples is 96, the run in checkpoints/run-001 has 192" in one_sentence(
        capsys.readouterr().err
    )
    assert train_main("--resume --dry-run --seed 9".split()) == 2
    said = one_sentence(capsys.readouterr().err)
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


# -- what a run begins with ------------------------------------------------------------------------


def rows(folder, count, gold="4"):
    """A file of so many rows."""
    lines = [{"question": f"{number} and {number}?", "answer": gold} for number in range(count)]
    file = folder / f"{count}.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(file)


def test_a_run_takes_the_questions_there_are_unless_told(nowhere, capsys):
    def questions(*flags):
        assert main([*"train --dry-run --json --model embedded".split(), *flags]) == 0
        return json.loads(capsys.readouterr().out)["questions"]

    rows(nowhere, 60)
    few = questions("--source", "60.jsonl")
    assert 40 < few < 60
    assert questions("--source", "60.jsonl", "-n", "20") == 20
    # Endless sources: what the recipe says.
    assert questions() == questions("--source", "numbers") == 4800
    (nowhere / "own.yaml").write_text("train: {num_examples: 60}")
    assert main("train --dry-run --source 60.jsonl --config own.yaml".split()) == 2
    assert f"--num {few} or fewer" in one_sentence(capsys.readouterr().err)


@pytest.mark.parametrize(
    "flags, sizes",
    [
        ([], (8, 1000, 300)),
        (["train.num_examples=160"], (8, 160, 160)),
        (["train.num_examples=32"], (8, 100, 100)),
        (["train.num_examples=8", "train.eval_size=4", "train.validation_size=4"], (2, 4, 4)),
        (["train.num_examples=1", "train.eval_size=0", "train.validation_size=0"], (0, 0, 0)),
        (["train.num_examples=160", "train.eval_size=9"], (8, 9, 160)),
        (
            [
                "train.tokens=2000",
                "search.max_tokens=60",
                "train.eval_size=0",
                "train.validation_size=0",
            ],
            (2, 0, 0),
        ),
    ],
)
def test_what_a_run_measures_follows_its_questions(flags, sizes):
    config = load_run(None, ["student=embedded", *flags])
    assert (affordable(config), config.train.eval_size, config.train.validation_size) == sizes


# -- the pre-flight --------------------------------------------------------------------------------


def test_a_preflight_changes_nothing_of_the_run(tmp_path, capsys):
    flags = (
        "-n 8 --eval-size 4 --set train.validation_size=4 --set train.questions_per_round=4".split()
    )
    files = []
    for count in (8, 0):
        out = tmp_path / str(count)
        assert (
            main(
                [
                    "train",
                    "--model",
                    "embedded",
                    *flags,
                    *f"--out {out} --set train.preflight={count}".split(),
                ]
            )
            == 0
        )
        said = capsys.readouterr().err
        assert ("pre-flight, 8 responses: " in said) == (count > 0)
        assert ("a response to each of 8 questions: " in said) == (count > 0)
        run = out / "run-001"
        trees = read_jsonl(run / "journal.jsonl")
        for record in trees:
            record["cost"].pop("seconds")
        keys = [{k: v for k, v in tree.items() if k not in ("sha256", "hash")} for tree in trees]
        files.append(
            (
                keys,
                (run / "student" / "model.safetensors").read_bytes(),
            )
        )
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "responses, right, unstated, tokens, words",
    [
        (8, 0, 8, 80, ["none states an answer", "problems.shots", "train.preflight=0"]),
        (8, 0, 3, 8 * 160, ["cut at search.max_tokens, which is 160: raise it"]),
        (0, None, 0, 0, ["no prompt fits into engine.max_context, which is 1024"]),
        (8, 0, 7, 1279, []),  # one states an answer, and one has an end
        (8, 1, 7, 8 * 160, []),
        (8, None, 8, 80, []),  # nothing says what is right
    ],
)
def test_a_preflight_stops_what_would_learn_nothing(responses, right, unstated, tokens, words):
    found = (responses, right, unstated, tokens)
    if not words:
        check(grpo_config(), *found)
        return
    with pytest.raises(TrainingError) as error:
        check(grpo_config(), *found)
    assert all(word in str(error.value) for word in words)
    if responses:
        check(grpo_config(["rewards.custom=reward.py:f"]), *found)


def test_a_run_that_would_learn_nothing_ends_before_its_folder(tmp_path, capsys):
    flags = f"train --model embedded -n 4 --eval-size 2 --out {tmp_path / 'out'}".split()
    short = "--set search.max_tokens=2 --set train.validation_size=0".split()
    assert main([*flags, *short]) == 2
    said = capsys.readouterr().err
    assert "error: pre-flight: of 4 responses none is right and all were cut" in said
    assert not (tmp_path / "out").exists()
