"""`vf-eval` for this package: what a command line means, and the same behaviour under both console
scripts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from tables import CHECKOUT, write_jsonl
from verifiers.v1.cli.replay import main as replay

import alphazero_llm_trainer as az
from alphazero_llm_trainer import environment
from alphazero_llm_trainer.environment import front_end
from alphazero_llm_trainer.environment import rollouts as report
from alphazero_llm_trainer.environment.argv import OUR_ID, names_us
from alphazero_llm_trainer.environment.front_end import EXIT_ALL_FAILED, fill, parse, run
from alphazero_llm_trainer.errors import EXIT_USER_ERROR, AlphaZeroError

# verifiers' own `vf-eval`
SCRIPT = "import sys\nfrom verifiers.v1.cli.eval.main import main\nsys.exit(main())\n"


def by_verifiers_own_script(folder, *arguments):
    """What verifiers' own `vf-eval` prints, in a process of its own."""
    file = folder / "bin" / "vf-eval"
    file.parent.mkdir()
    file.write_text(SCRIPT)
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PRIME_API_KEY", "OPENROUTER_API_KEY")
    }
    environment |= {
        "NO_COLOR": "1",
        "HOME": str(folder / "bin"),
        "PYTHONPATH": str(CHECKOUT),
    }
    command, how = (
        [sys.executable, str(file), *arguments],
        {"cwd": folder, "env": environment, "timeout": 240},
    )
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **how
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT = """
import sys
from alphazero_llm_trainer.environment.front_end import run, verifiers_has_one
assert not verifiers_has_one()
for line in sys.argv[1:]:
    print("exit", run(line.split()), flush=True)
"""


@pytest.mark.slow
def test_the_four_lines_outlive_verifiers_own_command(tmp_path):
    """Its modules are deleted, not hidden."""
    lesser = tmp_path / "lesser"
    whole = Path(str(find_spec("verifiers").submodule_search_locations[0]))
    shutil.copytree(whole, lesser / "verifiers")
    for name in ("cli/eval", "cli/dashboard"):
        shutil.rmtree(lesser / "verifiers" / "v1" / name)
    (lesser / "verifiers" / "v1" / "configs" / "cli" / "eval.py").unlink()
    paths = {"PYTHONPATH": f"{lesser}:{CHECKOUT}", "HOME": str(lesser)}
    keys = ("PRIME_API_KEY", "OPENROUTER_API_KEY")
    environment = {name: own for name, own in os.environ.items() if name not in keys}
    train = "--num-examples 4 --checkpoint-dir ./checkpoints --save-every 2 --use-grpo --dry-run"
    lines = [
        f"{OUR_ID} -n 2 -o out --run.name run",
        f"{OUR_ID} -n 1 --tier free --use-student-model",
        f"{OUR_ID} -s -- --dry-run",
        f"{OUR_ID} -s -- {train}",
        "gsm8k -n 1",
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *lines], cwd=tmp_path, env=environment | paths,
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
    )  # fmt: skip
    assert re.findall(r"^exit (\d)$", done.stdout, re.M) == [*"0000", "2"], done.stderr
    first, second, *_ = done.stdout.split("exit 0\n")
    check_evaluation(first, tmp_path)
    assert "tier free takes no part" in second and "vf-eval: " in done.stderr


def test_vf_eval_is_installed_by_somebody():
    """Where verifiers' own script is gone, `[project.scripts]` needs ours."""
    assert entry_points(group="console_scripts", name="vf-eval")


def test_verifiers_own_script_becomes_ours_in_its_own_process(capsys, monkeypatch):
    """As its `main` asks for this package's classes."""
    name = "verifiers.v1.cli.eval.main"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(environment, "front_end", front_end)  # put back, as the next line does
    monkeypatch.delitem(sys.modules, front_end.__name__)
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/vf-eval", "gsm8k"])
    assert az.AlphaZeroError is AlphaZeroError
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/vf-eval", OUR_ID, "--help"])
    with pytest.raises(SystemExit) as stop:
        _ = az.AlphaZeroEnv
    assert stop.value.code == 0 and capsys.readouterr().out == front_end.USAGE


@pytest.mark.slow
def test_verifiers_own_script_evaluates_and_hands_training_over(tmp_path):
    check_evaluation(
        by_verifiers_own_script(tmp_path, OUR_ID, "-n", "2", "-o", "out", "--run.name", "run"),
        tmp_path,
    )
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "out"}
    (tmp_path / "train").mkdir()
    assert "--num-examples" in by_verifiers_own_script(
        tmp_path / "train", OUR_ID, "-s", "--", "--help"
    )


def test_the_embedded_evaluation(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.yaml"
    weights.write_text("rewards: {hre_weight: 0.7, pre_weight: 0.3}\n")
    more = ["--env.taskset.config-file", str(weights)]
    assert run([*f"{OUR_ID} -n 2 -o out --run.name run".split(), *more]) == 0
    check_evaluation(capsys.readouterr().out, tmp_path)
    replay(f"{tmp_path / 'out' / 'run'} --output-dir again --no-rich".split())
    assert rewards(tmp_path / "again") == rewards(tmp_path / "out" / "run")


def test_the_evaluation_without_verifiers_own_command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(front_end, "verifiers_has_one", lambda: False)
    named = [OUR_ID, "-o", "out", "--run.name", "run", "-n", "2"]
    assert run(named) == 0
    check_evaluation(capsys.readouterr().out, tmp_path)
    assert run(named) == EXIT_USER_ERROR  # over its results
    folder = tmp_path / "out" / "run"
    before = rewards(folder)
    first, second = map(json.loads, (folder / "traces.jsonl").read_text().splitlines())
    assert first["run"]["name"] == "run"
    second["ok"] = second["traces"][0]["ok"] = False
    (folder / "traces.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    assert run([*named, "-r", "2", "--resume"]) == EXIT_USER_ERROR
    assert "num_rollouts" in capsys.readouterr().err
    assert run(["@", str(folder / "configs" / "resolved" / "eval.json"), "--resume"]) == 0
    again = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    assert rewards(folder) == before and again[0] == first and second["id"] != again[1]["id"]
    assert run([*named, "--clean", "-n", "1", "-r", "2"]) == 0
    assert len((folder / "traces.jsonl").read_text().splitlines()) == 2
    assert run([*named, "--run.name", "..", "--clean"]) == EXIT_USER_ERROR and folder.exists()
    assert run(["someone-elses-taskset", "-m", "x"]) == EXIT_USER_ERROR


def rewards(folder):
    """The parts of each trace's reward, by task."""
    episodes = map(json.loads, (folder / "traces.jsonl").read_text().splitlines())
    found = {episode["task"]["key"]: episode["traces"][0] for episode in episodes}
    return {key: (trace["rewards"], trace["metrics"]) for key, trace in found.items()}


def check_evaluation(said, folder):
    assert "model: embedded-student, greedy, temperature 0 (change: -m MODEL" in said
    assert "problems: embedded test, 2 (change: --env.taskset.source" in said
    assert all(name in said for name in ("reward ", "correctness_reward ", "perplexity_reward "))
    assert "deprecated" not in said  # verifiers' notice of its own command
    lines = (folder / "out" / "run" / "traces.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    assert [episode["ok"] for episode in episodes] == [True, True]
    assert {episode["task"]["key"] for episode in episodes} == {
        e["task"]["data"]["id"] for e in episodes
    }
    [trace] = episodes[0]["traces"]
    assert (
        set(trace["rewards"]) == {"combined_reward"}
        and trace["rewards"]["combined_reward"]["weight"] == 1.0
    )
    assert set(trace["metrics"]) == {"correctness_reward", "perplexity_reward"}
    assert trace["agent"]["config"]["client"]["base_url"] == "embedded://student/v1"
    assert trace["calls"][0]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    "argv, ours",
    [
        ([OUR_ID], True),
        ("someone/alphazero_llm_trainer@0.1.0 -n 2".split(), True),
        (["--env.taskset.id", OUR_ID], True),
        ([f"--env.taskset.id={OUR_ID}", "-s"], True),
        (f"gsm8k -m {OUR_ID}".split(), False),
        (["@", "file.toml"], False),
        ([], False),
        (f"-n 2 -- --env.taskset.id {OUR_ID}".split(), False),
    ],
)
def test_which_command_lines_are_ours(argv, ours):
    assert names_us(argv) is ours


@pytest.mark.parametrize(
    "argv, called, given",
    [
        ("gsm8k -s --tier free".split(), "verifiers_own", "gsm8k -s --tier free".split()),
        ([OUR_ID, "--help-all"], "verifiers_own", [OUR_ID, "--help"]),
        (
            f"--env.taskset.id={OUR_ID} -s -- --set a=--".split(),
            "train_main",
            ["--set", "a=--"],
        ),
        (f"{OUR_ID} -s --help".split(), "train_main", ["--help"]),
        (
            f"{OUR_ID} --tier=free -n 2".split(),
            "evaluate",
            f"{OUR_ID} -n 2 --env.taskset.tier free".split(),
        ),
        (
            f"{OUR_ID} --use-student-model false -n 1".split(),
            "evaluate",
            f"{OUR_ID} -n 1 --env.taskset.use-student-model false".split(),
        ),
        (
            [OUR_ID, "--no-use-student-model"],
            "evaluate",
            f"{OUR_ID} --env.taskset.use-student-model false".split(),
        ),
    ],
)
def test_what_a_command_line_runs(argv, called, given, monkeypatch):
    calls = []
    place = (
        "alphazero_llm_trainer.cli.train.train_main"
        if called == "train_main"
        else f"{front_end.__name__}.{called}"
    )
    monkeypatch.setattr(place, lambda argv: calls.append(argv) or 0)
    assert run(argv) == 0
    assert calls == [given]


EMBEDDED = "-m embedded-student --client.base-url embedded://student/v1".split()
REMOTE = "-m x --client.base-url http://127.0.0.1:9/v1".split()


def setting(name, value):
    return [f"--env.taskset.{name}", value]


@pytest.mark.parametrize(
    "rest, model, source, likely, push, size",
    [
        ([], "embedded-student", "embedded", True, False, 20),
        (["-n", "3"], "embedded-student", "embedded", True, False, 20),
        ([*EMBEDDED, *setting("source", "gsm8k"), "-n", "100"], "embedded-student", "gsm8k", True, False, 100),
        (REMOTE, "x", "gsm8k", False, False, 20),
        ([*REMOTE, "--push", "--env.taskset.use-student-model"], "x", "gsm8k", True, True, 20),
    ],
)  # fmt: skip
def test_what_is_left_open_is_filled_in(rest, model, source, likely, push, size):
    config = parse([OUR_ID, *rest])
    fill(config)
    taskset = config.env.taskset
    assert (config.model, config.push) == (model, push) and model in str(config.run.name)
    assert (taskset.source, taskset.use_student_model, taskset.eval_size) == (source, likely, size)
    assert (config.client.base_url == "embedded://student/v1") is (model == "embedded-student")
    # As it reaches verifiers.
    assert type(config).model_validate_json(config.model_dump_json()) == config


def test_the_file_s_source_counts(tmp_path):
    file = tmp_path / "own.yaml"
    given = [OUR_ID, *setting("config-file", str(file))]
    file.write_text("problems: {source: numbers}\n")
    for more, source in (([], "numbers"), (setting("source", "embedded"), "embedded")):
        config = parse([*given, *more])
        fill(config)
        assert config.env.taskset.source == source


def test_a_run_whose_rollouts_all_failed_is_a_failure(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = run(
        [OUR_ID, *REMOTE, *setting("source", "embedded"), *"-n 2 -o out --run.name run".split()]
    )
    printed = capsys.readouterr()
    assert code == EXIT_ALL_FAILED
    assert "2 rollouts, 2 failed" in printed.out
    assert "vf-eval: every rollout failed, the first one with:" in printed.err


def test_the_summary_counts_only_what_ended(tmp_path):
    part = {"score": 1.0, "weight": 0.4}
    ended = {
        "ok": True,
        "traces": [{"rewards": {"a": part, "b": {"score": 0.5, "weight": 0.6}, "c": None}}],
    }
    failed = {
        "ok": False,
        "errors": [],
        "traces": [{"errors": [{"message": "no\nroute"}], "rewards": {"a": None}}],
    }
    write_jsonl(tmp_path / report.TRACES, (ended, failed))
    summary = report.summarise(tmp_path)
    assert (summary.total, summary.failed, summary.first_error) == (2, 1, "no route")
    assert summary.means == pytest.approx({"reward": 0.7, "a": 1.0, "b": 0.5})
