"""The console script, and every kind of bad input: one sentence, exit code 2, nothing lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.engine import kernel_build
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.student import PACKAGED

TINY = ["--num-examples", "4", "--eval-size", "4", "--student", "embedded", "--set", "train.validation_size=0"]
NO_ROW = '{"question": "How many?", "answer": "no final line"}\n'


def bad_inputs(tmp):
    """(name, command, words that the sentence must hold)"""
    (tmp / "unknown.yaml").write_text("train:\n  lerning_rate: 1\n")
    (tmp / "broken.yaml").write_text("train: [1\n")
    (tmp / "list.yaml").write_text("- 1\n")
    for name, text in (
        ("empty", ""),
        ("nogold", NO_ROW),
        ("noquestion", '{"answer": "#### 3"}\n'),
        ("nojson", "{'question'\n"),
    ):
        (tmp / name).mkdir()
        (tmp / name / "train.jsonl").write_text(text)
        (tmp / name / "test.jsonl").write_text(text)
    (tmp / "student").mkdir()
    (tmp / "student" / "config.json").write_text("{")
    (tmp / "run-001").mkdir()
    (tmp / "run-001" / "run.json").write_text('{"half')

    def gsm8k(name):
        return ["train", *TINY, "--set", "problems.source=gsm8k", "--set", f"dataset.path={tmp / name}"]

    return [
        ("unknown command", ["fly"], ["fly"]),
        ("unknown flag", ["train", "--lerning-rate", "1"], ["--lerning-rate"]),
        ("flag of a wrong type", ["train", "--num-examples", "many"], ["--num-examples", "many"]),
        ("number out of range", ["train", "--num-examples", "0"], ["train.num_examples", "0"]),
        ("both methods", ["train", "--use-grpo", "--use-legacy"], ["--use-legacy"]),
        ("unknown YAML key", ["train", "--config", str(tmp / "unknown.yaml")], ["train.lerning_rate"]),
        ("broken YAML", ["train", "--config", str(tmp / "broken.yaml")], ["broken.yaml", "line"]),
        ("YAML list", ["info", "--config", str(tmp / "list.yaml")], ["list.yaml", "mapping"]),
        ("missing YAML", ["train", "--config", str(tmp / "nowhere.yaml")], ["nowhere.yaml"]),
        ("wrong type in --set", ["info", "--set", "train.grpo.epochs=x"], ["train.grpo.epochs", "x"]),
        ("weight out of range", ["info", "--set", "rewards.hre_weight=1.5"], ["rewards.hre_weight", "1.5"]),
        ("--set without value", ["info", "--set", "seed"], ["KEY=VALUE"]),
        ("unknown student", ["train", "--student", "gpt-5"], ["student", "gpt-5"]),
        ("unknown source", ["train", "--set", "problems.source=aime"], ["problems.source", "aime"]),
        ("empty data set", gsm8k("empty"), ["empty"]),
        ("question without gold", gsm8k("nogold"), ["line 1"]),
        ("gold without question", gsm8k("noquestion"), ["question"]),
        ("rows that are no JSON", gsm8k("nojson"), ["line 1"]),
        ("missing folder", gsm8k("nowhere"), ["nowhere"]),
        ("levels for GSM8K", [*gsm8k("empty"), "--set", "problems.levels=[1]"], ["problems.levels"]),
        ("missing key", ["train", *TINY, "--set", "teachers.tier=free"], ["OPENROUTER_API_KEY"]),
        ("no checker in the tier", ["train", *TINY, "--set", "teachers.terminal_checker=true"], ["teachers.tier"]),
        ("nothing to resume", ["train", "--resume", "--checkpoint-dir", str(tmp / "none")], ["--resume"]),
        ("resume a file that is none", ["train", "--resume", str(tmp / "none")], ["--resume"]),
        ("broken run card", ["train", "--resume", str(tmp / "run-001")], ["run.json"]),
        ("student folder without a model", ["search", "--path", str(tmp)], ["config.json"]),
        ("broken student folder", ["search", "--path", str(tmp / "student")], ["student"]),
        ("full weights of a 4-bit model", ["info", "--set", "models.embedded.quantization=nf5"], ["nf5"]),
        ("sft of another student", ["sft", "--student", "llama-3.2-3b"], ["llama-3.2-3b"]),
        ("sft from scratch on rows", ["sft", "--set", "problems.source=gsm8k"], ["problems.source", "--model"]),
        ("sft without test problems", ["sft", "--eval-size", "0"], ["--eval-size"]),
    ]


NAMES = [
    "unknown command", "unknown flag", "flag of a wrong type", "number out of range", "both methods",
    "unknown YAML key", "broken YAML", "YAML list", "missing YAML", "wrong type in --set", "weight out of range",
    "--set without value", "unknown student", "unknown source", "empty data set", "question without gold",
    "gold without question", "rows that are no JSON", "missing folder", "levels for GSM8K", "missing key",
    "no checker in the tier", "nothing to resume", "resume a file that is none", "broken run card",
    "student folder without a model", "broken student folder", "full weights of a 4-bit model", "sft of another student",
    "sft from scratch on rows", "sft without test problems",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_sentence_and_exit_code_2(name, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    cases = {case[0]: case for case in bad_inputs(tmp_path)}
    assert set(cases) == set(NAMES)
    _, command, words = cases[name]
    before = sorted(tmp_path.rglob("*"))
    try:
        code = main(command)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    captured = capsys.readouterr()
    message = captured.err.strip().removeprefix("loading PyTorch and TRL\n")  # said by the first test that needs them
    assert message.startswith("error: "), message
    assert len(message.splitlines()) == 1, message
    assert "Traceback" not in message
    for word in words:
        assert word in message, message
    assert captured.out == ""
    assert sorted(tmp_path.rglob("*")) == before, "bad input left something behind"


def test_a_teacher_that_never_answers_does_not_stop_a_run(tmp_path, monkeypatch):
    """Tier `local` with nothing listening: failures are recorded, the student goes on alone."""
    config = tmp_path / "teachers.yaml"
    config.write_text(
        "teacher_tiers:\n  local:\n    base_url: http://127.0.0.1:9/v1\n    teachers:\n      - {model: nobody}\n"
        "teachers: {tier: local, max_retries: 0, timeout_seconds: 1}\n"
    )
    assert train_main([*TINY, "--config", str(config), "--checkpoint-dir", str(tmp_path / "runs")]) == 0
    card = json.loads((tmp_path / "runs" / "run-001" / "run.json").read_text())
    [ledger] = card["teachers"].values()
    assert sum(ledger["failures"].values()) > 0
    assert card["search_cost"]["sampled_tokens"] > 0


def test_search_prints_the_tree_the_choice_and_the_cost(capsys):
    assert main(["search", "--iterations", "3", "--student", "embedded"]) == 0
    out = capsys.readouterr().out
    assert "root  N=" in out
    assert "tokens sampled" in out
    assert "answer " in out
    assert main(["search", "--iterations", "3", "--student", "embedded", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert Tree.from_dict(result["tree"]).N[0] > 0
    assert result["cost"]["sampled_tokens"] > 0


def test_a_search_that_never_leaves_one_path_says_so(capsys):
    flags = ["search", "--mode", "token", "--set", "search.temperature=1.6", "--student", "embedded"]
    assert main([*flags, "--iterations", "400"]) == 0
    out = capsys.readouterr().out
    assert "all 400 simulations went down one path: the policy gives the likeliest token" in out
    # With values out of the way, PUCT takes another token exactly where 1/probability says.
    flags += ["--set", "search.exploration=10000000"]
    [least] = re.findall(r"looks at it after ([\d,]+) simulations or more", out)
    assert main([*flags, "--iterations", str(int(least.replace(",", "")) * 9 // 10)]) == 0
    assert "one path" in capsys.readouterr().out
    assert main([*flags, "--iterations", str(int(least.replace(",", "")) * 11 // 10)]) == 0
    assert "one path" not in capsys.readouterr().out


def test_search_answers_a_question_of_the_users(capsys):
    assert (
        main(["search", "Ana has 3 pens. She buys 4 more pens. How many pens does Ana have now?", "--iterations", "2"])
        == 0
    )
    assert capsys.readouterr().out.startswith("Ana has 3 pens.")


def test_info_names_versions_device_tiers_and_never_a_key(capsys, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-secret-value")
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "OPENROUTER_API_KEY, which is set" in out
    assert "secret" not in out
    for word in ("configuration:", "transformers", "device:", "embedded", "production"):
        assert word in out


def test_info_says_what_became_of_the_kernels(capsys, monkeypatch):
    def kernels_line(*flags):
        assert main(["info", *flags]) == 0
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kernels: ")]
        return " ".join(line.split())

    monkeypatch.setattr(kernel_build, "kernels", kernel_build.load_kernels)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert kernels_line().startswith("kernels: transformers instead of C: there is no C compiler 'no-such-compiler'")
    assert kernels_line("--set", "engine.native=off") == "kernels: off (engine.native)"


def test_sft_trains_and_writes_a_manifest(tmp_path, capsys):
    flags = ["--set", "train.sft.steps=4", "--set", "train.demonstrations=16", "--set", "train.sft.validation_size=8"]
    assert main(["sft", "--student", "embedded", "--eval-size", "8", "--out", str(tmp_path / "out"), *flags]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["steps"] == 4
    assert manifest["test_greedy"]["problems"] == 8
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_sft_goes_on_from_a_folder(tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--set", "train.demonstrations=20", "--set", "train.sft.validation_size=8", "--eval-size", "8"]
    assert main(["sft", "--path", str(PACKAGED), "--out", str(out), *flags]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["steps"] == 4  # three passes over 20 rows, 16 an update
    assert manifest["settings"]["learning_rate"] == 2e-4
    assert len(manifest["data_sha256"]) == 64
    assert manifest["started_from"] == str(PACKAGED) and manifest["adapter"] == "full"
    assert "paired gain" in capsys.readouterr().out
    assert main(["search", "--path", str(out), "--iterations", "2"]) == 0


@pytest.mark.parametrize(
    "command", [["--help"], ["train", "--help"], ["search", "--help"], ["sft", "--help"], ["info", "--help"]]
)
def test_help_is_there(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_the_trainers_help_starts_without_heavy_imports():
    code = (
        "import sys\nfrom alphazero_llm_trainer.cli.train import train_main\n"
        "try:\n    train_main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'transformers', 'verifiers', 'trl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
