"""`vf-eval` for this package: what a command line means, and the same behaviour under both console
scripts.
"""

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
from tables import CHECKOUT, read_jsonl, table, write_jsonl
from verifiers.v1.cli.replay import main as replay

import alphazero_llm_trainer as az
from alphazero_llm_trainer import cli
from alphazero_llm_trainer.cli import vf_eval
from alphazero_llm_trainer.cli.vf_eval import main as run
from alphazero_llm_trainer.environment import front_end
from alphazero_llm_trainer.environment import rollouts as report
from alphazero_llm_trainer.environment.argv import OUR_ID, names_us
from alphazero_llm_trainer.environment.front_end import EXIT_ALL_FAILED, fill_config, parse_config
from alphazero_llm_trainer.errors import EXIT_USER_ERROR, AlphaZeroError

# verifiers' own `vf-eval`
SCRIPT = "import sys\nfrom verifiers.v1.cli.eval.main import main\nsys.exit(main())\n"


CASES = table("front_end")


def in_a_process(folder, *command, path=CHECKOUT):
    """What Python prints there, in a process without keys."""
    keys = ("PRIME_API_KEY", "OPENROUTER_API_KEY")
    own = {name: value for name, value in os.environ.items() if name not in keys}
    own |= {"NO_COLOR": "1", "HOME": str(folder / "home"), "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=own, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300, check=True,
    )  # fmt: skip


WITHOUT = """
import sys
from alphazero_llm_trainer.cli.vf_eval import main as run
from alphazero_llm_trainer.environment.front_end import verifiers_has_one
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
    train = "--num-examples 4 --checkpoint-dir ./checkpoints --save-every 2 --use-grpo --dry-run"
    lines = [
        f"{OUR_ID} -n 2 -o out --run.name run",
        f"{OUR_ID} -n 1 --tier free --use-student-model",
        f"{OUR_ID} -s -- --dry-run",
        f"{OUR_ID} -s -- {train}",
        "gsm8k -n 1",
    ]
    done = in_a_process(tmp_path, "-c", WITHOUT, *lines, path=f"{lesser}:{CHECKOUT}")
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
    monkeypatch.setattr(cli, "vf_eval", vf_eval)  # put back, as the next line does
    monkeypatch.delitem(sys.modules, vf_eval.__name__)
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/vf-eval", "gsm8k"])
    assert az.AlphaZeroError is AlphaZeroError
    for python in ("", "-X dev", "-X dev -W error -I", "-X dev -m coverage run"):
        for script in ("/bin/vf-eval", f"-m {name}"):
            monkeypatch.delitem(sys.modules, vf_eval.__name__, raising=False)
            line = f"python {python} {script} {OUR_ID} --help"
            monkeypatch.setattr(sys, "orig_argv", line.split())
            with pytest.raises(SystemExit) as stop:
                _ = az.AlphaZeroEnv
            assert stop.value.code == 0 and capsys.readouterr().out == front_end.USAGE


def test_perplexity_of_a_served_model_is_by_a_student_that_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text("student: embedded\nrewards: {use_student_model: true}\n")
    model = "-m x --client.base-url http://127.0.0.1:9/v1 --env.taskset.source embedded -n 1"
    named = f"--env.taskset.config-file {file}"
    for more, said in (
        (
            "--use-student-model",
            "--use-student-model measures perplexity by a student that is here",
        ),
        (named, "student is 'embedded' in .* and nothing here measures by it"),
        (
            "--use-student-model --env.taskset.task.student nobody",
            "task.student nobody is no folder",
        ),
    ):
        assert run(f"{OUR_ID} {model} {more}".split()) == EXIT_USER_ERROR
        assert re.search(said, capsys.readouterr().err)
    for line, ended in (
        (f"{model} {named} --env.taskset.use-student-model", True),
        (model, False),
        ("", True),
    ):
        config = parse_config(f"{OUR_ID} {line}".split())
        fill_config(config)
        [told] = front_end.describe_plan(config)
        assert ("; perplexity: under embedded, frozen" in told) is ended


@pytest.mark.slow
def test_verifiers_own_script_evaluates_and_hands_training_over(tmp_path):
    script = tmp_path / "home" / "vf-eval"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    named = f"{script} {OUR_ID} -n 2 -o out --run.name run".split()
    check_evaluation(in_a_process(tmp_path, *named).stdout, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"home", "out"}
    training = in_a_process(script.parent, script, OUR_ID, "-s", "--", "--help")
    assert "--num-examples" in training.stdout


def episodes(folder):
    return read_jsonl(folder / "traces.jsonl")


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
    folder = tmp_path / "out" / "run"
    assert run(named) == 0
    check_evaluation(capsys.readouterr().out, tmp_path)
    assert run(named) == EXIT_USER_ERROR  # over its results
    before, (first, second) = rewards(folder), episodes(folder)
    assert first["run"]["name"] == "run"
    second["ok"] = second["traces"][0]["ok"] = False
    write_jsonl(folder / "traces.jsonl", (first, second))
    assert run([*named, "-r", "2", "--resume"]) == EXIT_USER_ERROR
    assert "num_rollouts" in capsys.readouterr().err
    assert run(["@", str(folder / "configs" / "resolved" / "eval.json"), "--resume"]) == 0
    again = episodes(folder)
    assert rewards(folder) == before and again[0] == first and second["id"] != again[1]["id"]
    assert run([*named, "--clean", "-n", "1", "-r", "2"]) == 0 and len(episodes(folder)) == 2
    assert run([*named, "--run.name", "..", "--clean"]) == EXIT_USER_ERROR and folder.exists()
    assert run(["someone-elses-taskset", "-m", "x"]) == EXIT_USER_ERROR


def rewards(folder):
    """The parts of each trace's reward, by task."""
    found = {episode["task"]["key"]: episode["traces"][0] for episode in episodes(folder)}
    return {key: (trace["rewards"], trace["metrics"]) for key, trace in found.items()}


def check_evaluation(said, folder):
    for what in (
        "model: embedded-student, greedy, temperature 0 (change: -m MODEL",
        "problems: embedded test, 2 (change: --env.taskset.source",
        *("reward ", "correctness_reward ", "perplexity_reward "),
    ):
        assert what in said
    assert "deprecated" not in said  # verifiers' notice of its own command
    found = episodes(folder / "out" / "run")
    assert [episode["ok"] for episode in found] == [True, True]
    for episode in found:
        assert episode["task"]["key"] == episode["task"]["data"]["id"]
    [trace] = found[0]["traces"]
    assert trace["rewards"].keys() == {"combined_reward"}
    assert trace["rewards"]["combined_reward"]["weight"] == 1.0
    assert trace["metrics"].keys() == {"correctness_reward", "perplexity_reward"}
    assert trace["agent"]["config"]["client"]["base_url"] == "embedded://student/v1"
    assert trace["calls"][0]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("line, ours", CASES["ours"])
def test_which_command_lines_are_ours(line, ours):
    assert names_us(line.split()) is ours


@pytest.mark.parametrize("line, called, given", CASES["called"])
def test_what_a_command_line_runs(line, called, given, monkeypatch):
    calls, place = [], f"{front_end.__name__}.{called}"
    if called == "train_main":
        place = "alphazero_llm_trainer.cli.train.train_main"
    monkeypatch.setattr(place, lambda argv: calls.append(argv) or 0)
    assert run(line.split()) == 0
    assert calls == [given.split()]


@pytest.mark.parametrize("line, filled", CASES["filled"])
def test_what_is_left_open_is_filled_in(line, filled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers.yaml").write_text("problems: {source: numbers}\n")
    config = parse_config([OUR_ID, *line.split()])
    fill_config(config)
    taskset, model = config.env.taskset, filled[0]
    told = [taskset.source, taskset.use_student_model, config.push, taskset.eval_size]
    assert [config.model, *told] == filled and model in str(config.run.name)
    assert (config.client.base_url == "embedded://student/v1") is (model == "embedded-student")
    # As it reaches verifiers.
    assert type(config).model_validate_json(config.model_dump_json()) == config


def test_a_run_whose_rollouts_all_failed_is_a_failure(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    line = f"""
        {OUR_ID} -m x --client.base-url http://127.0.0.1:9/v1 --env.taskset.source embedded
        -n 2 -o out --run.name run
    """
    assert run(line.split()) == EXIT_ALL_FAILED
    printed = capsys.readouterr()
    assert "2 rollouts, 2 failed" in printed.out
    assert "vf-eval: every rollout failed, the first one with:" in printed.err


def test_the_summary_counts_only_what_ended(tmp_path):
    whole, half = {"score": 1.0, "weight": 0.4}, {"score": 0.5, "weight": 0.6}
    ended = {"ok": True, "traces": [{"rewards": {"a": whole, "b": half, "c": None}}]}
    trace = {"errors": [{"message": "no\nroute"}], "rewards": {"a": None}}
    failed = {"ok": False, "errors": [], "traces": [trace]}
    write_jsonl(tmp_path / report.TRACES, (ended, failed))
    summary = report.summarise_rollouts(tmp_path)
    assert (summary.total, summary.failed, summary.first_error) == (2, 1, "no route")
    assert summary.means == pytest.approx({"reward": 0.7, "a": 1.0, "b": 0.5})
