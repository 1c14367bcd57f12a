"""What the commands `search`, `info` and `sft` print and write."""

import json

import pytest
from tables import read_json, table

from alphazero_llm_trainer.chat import client
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.engine import kernel_build

CASES = table("cli")

TINY = "--num-examples 4 --eval-size 4 --model embedded --set train.validation_size=0".split()


def test_a_teacher_that_never_answers_does_not_stop_a_run(tmp_path, capsys, monkeypatch):
    """Tier `local` with nothing listening: failures are recorded, the student goes on alone."""
    monkeypatch.setattr(client, "TEACHER_RETRIES", 0)  # each waits for seconds
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


def test_info_says_what_became_of_the_kernels(capsys, monkeypatch):
    def kernels(*flags):
        assert main(["info", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)["kernels"]

    monkeypatch.setattr(kernel_build, "open_kernels", kernel_build.load_kernels)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert kernels().startswith(
        "transformers instead of C: there is no C compiler 'no-such-compiler'"
    )
    assert kernels("--set", "engine.native=off") == "off (engine.native)"


@pytest.mark.parametrize(
    "words, meant",
    CASES["mistyped"],
)
def test_what_is_mistyped_is_named_as_it_is_spelt(words, meant, capsys):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and f"did you mean {meant}?" in capsys.readouterr().err
