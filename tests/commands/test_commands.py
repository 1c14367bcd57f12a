"""The command line as a newcomer meets it: help, versions, flags, JSON, and what starts without
torch.
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from tables import write_jsonl

import alphazero_llm_trainer
from alphazero_llm_trainer.cli.base import flag_layers, resolve_config
from alphazero_llm_trainer.cli.main import build_parser, main
from alphazero_llm_trainer.environment.argv import OUR_ID

COMMANDS = [
    "info", "search", "train", "sft", "value", "prm", "eval", "view",
    "report", "sample", "export", "fetch", "serve", "merge",
]  # fmt: skip


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_an_empty_line_is_a_question_for_help(argv, capsys):
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    out = capsys.readouterr().out
    assert code == 0
    for command in COMMANDS:
        assert f"\n    {command} " in out


def test_the_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    installed = metadata.version("alphazero-llm-trainer")
    assert capsys.readouterr().out == f"alphazero-llm-trainer {installed}\n"
    assert alphazero_llm_trainer.__version__ == installed
    assert (Path(alphazero_llm_trainer.__file__).parent / "py.typed").is_file()


def test_a_checkout_that_is_not_installed_has_no_version_and_no_error():
    root = Path(alphazero_llm_trainer.__file__).parent.parent
    code = "import alphazero_llm_trainer; print(alphazero_llm_trainer.__version__)"
    done = subprocess.run(  # -S: without the environment's packages
        [sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "unknown\n"


# -- names -----------------------------------------------------------------------------------------


def resolved(*words):
    args = build_parser().parse_args(words)
    return resolve_config(args), args


def test_a_model_is_a_name_a_folder_or_the_hub_id_of_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for model, name in (
        ("qwen3-0.6b", "qwen3-0.6b"),
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama-3.2-3b"),
    ):
        assert resolved("search", "--model", model)[0].student == name
    # A student of its own: a hub id that models.yaml doesn't know, or a folder.
    (tmp_path / "config.json").write_text("{}")
    for model in ("somebody/Some-Model-1B", str(tmp_path)):
        config, _ = resolved("train", "--model", model)
        name = Path(model).name.lower()
        assert config.student == name and config.models[name].path == model
    config, args = resolved("search", "--model", str(tmp_path), "--set", "student=embedded")
    assert config.student == "embedded" and args.path == tmp_path
    # A flag wins over --set.
    config, args = resolved("search", "--set", "search.simulations=9", "--simulations", "5")
    assert config.search.simulations == 5
    assert flag_layers(args) == [{"search": {"simulations": 5}}]


# -- info ------------------------------------------------------------------------------------------


def test_info_is_yaml_with_the_configuration_for_config(capsys, tmp_path):
    def info(*words):
        assert main(["info", *words]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    facts = info("--model", "embedded")
    assert [*facts][:5] == ["version", "python", "cuda", "cores", "kernels"]
    assert "configuration" not in facts
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 99\n")
    shipped = ["training.yaml", "models.yaml", "teacher_models.yaml", "grpo.yaml"]
    for words, seed, own in (([], 7, []), ([str(file)], 99, ["mine.yaml"])):
        facts = info("--use-grpo", "--config", *words)
        assert facts["configuration"]["seed"] == seed
        read = [Path(name) for name in facts["places"]["configuration"]]
        assert [path.name for path in read] == shipped + own
        assert all(path.is_file() for path in read) and "--config" in facts["places"]["own values"]


def test_info_as_json_is_json_alone(capsys, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-secret-value")
    assert main("info --json --model embedded".split()) == 0
    out = capsys.readouterr().out
    facts = json.loads(out)
    assert facts["student"]["name"] == "embedded" and facts["student"]["bytes"] > 400_000
    free = facts["tiers"]["free"]
    assert (free["key"], free["set"]) == ("OPENROUTER_API_KEY", True)
    assert free["place"] == "https://openrouter.ai/api/v1"
    assert "secret" not in out and "configuration" not in facts


# -- start-up --------------------------------------------------------------------------------------


LIGHT = {
    "info --config --json": 0,
    "search --model nowhere": 2,
    "train --set teachers.tier=free": 2,
    "eval --methods best": 2,
    "sample --num 0 --out x": 2,
    "value --data nowhere": 2,
}
START = f"""
import sys
def loaded(*names):
    return {{*names}} & {{*sys.modules}}
import alphazero_llm_trainer
assert not loaded("torch", "pydantic", "verifiers")
from alphazero_llm_trainer.cli.main import COMMANDS, main
for line in ("--help", *(f"{{name}} --help" for name in COMMANDS)):
    try:
        main(line.split())
    except SystemExit as stop:
        assert stop.code == 0
    slow = loaded("numpy", "pydantic", "rich", "jinja2", "httpx", "torch", "transformers")
    assert not slow, (line, slow)
from alphazero_llm_trainer.cli.vf_eval import main as vf_eval
assert vf_eval(["{OUR_ID}", "--help"]) == 0
heavy = ("torch", "transformers", "verifiers", "trl", "openai", "datasets")
for line, wanted in {LIGHT}.items():
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = stop.code
    assert (code, loaded(*heavy)) == (wanted, set()), (line, code, loaded(*heavy))
from alphazero_llm_trainer.runs.start import load_run, prepare
custom = {{"rewards": {{"custom": "reward.py:reward"}}}}
assert prepare(load_run(overrides=["problems.source=60.jsonl", "train.method=grpo", custom]))
assert not loaded("torch", "transformers", "trl")
assert main(["search", "What is 2 + 3?", "--set", "search.simulations=2"]) == 0
# transformers' models bring a compiler along (`torch._dynamo`), which takes seconds
unused = loaded("accelerate", "bitsandbytes", "datasets", "matplotlib", "peft", "sympy")
unused |= loaded("torch._dynamo", "transformers.modeling_utils", "trl", "verifiers")
assert not unused, unused
"""


def test_a_command_loads_what_it_needs_and_no_more(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    write_jsonl(tmp_path / "60.jsonl", ({"question": f"{n}?", "answer": n} for n in range(60)))
    reward = "def reward(problem, response, task):\n    return 1.0\n"
    (tmp_path / "reward.py").write_text(reward)
    done = subprocess.run(
        [sys.executable, "-c", START], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_verbose_shows_where_an_error_was_raised(capsys):
    for words, lines in (([], False), (["-v"], True)):
        assert main(["search", "--simulations", "0", *words]) == 2
        err = capsys.readouterr().err
        assert err.strip().splitlines()[-1].startswith("error: search.simulations is 0")
        assert ("Traceback" in err) is lines


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["info", "--config"]])
def test_a_reader_that_has_gone_is_no_error(words):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "alphazero_llm_trainer", *words],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode in (0, 130) and not done.stderr  # argparse minds no closed pipe
