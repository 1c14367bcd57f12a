"""`vf-eval` for this package: what a command line means, and the same behaviour under both console scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from alphazero_llm_trainer.environment import rollouts as report
from alphazero_llm_trainer.environment.argv import OUR_ID, Mode, names_us, plan, translate
from alphazero_llm_trainer.environment.front_end import EXIT_ALL_FAILED, one_sentence, parse, run
from alphazero_llm_trainer.environment.front_end import defaults as added_defaults
from alphazero_llm_trainer.errors import EXIT_USER_ERROR, ConfigError

SCRIPTS = {
    "verifiers": "import sys\nfrom verifiers.v1.cli.eval.main import main\nsys.exit(main())\n",
    "ours": "import sys\nfrom alphazero_llm_trainer.environment.__main__ import main\nsys.exit(main())\n",
}
COMMANDS = {  # (script, arguments): all run side by side, once
    "evaluate": ("verifiers", [OUR_ID, "-n", "2", "-o", "out", "--run.name", "run"]),
    "train help": ("verifiers", [OUR_ID, "-s", "--", "--help"]),
    "other under verifiers": ("verifiers", ["no-such-environment", "-s", "--tier", "free"]),
    "other under ours": ("ours", ["no-such-environment", "-s", "--tier", "free"]),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[subprocess.CompletedProcess[str], Path]]:
    """Every command of COMMANDS with the folder that it ran in."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PRIME_API_KEY", "OPENROUTER_API_KEY")}
    environment |= {"NO_COLOR": "1", "COLUMNS": "120", "HOME": str(tmp_path_factory.mktemp("home"))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    started = {}
    for name, (script, arguments) in COMMANDS.items():
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        file = folder / "bin" / "vf-eval"
        file.parent.mkdir()
        file.write_text(SCRIPTS[script])
        started[name] = (
            folder,
            subprocess.Popen(
                [sys.executable, str(file), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
    done = {}
    for name, (folder, process) in started.items():
        out, err = process.communicate(timeout=240)
        done[name] = subprocess.CompletedProcess(process.args, process.returncode, out, err), folder
    return done


@pytest.mark.slow
def test_the_embedded_evaluation_runs_under_verifiers_own_script(finished) -> None:
    result, folder = finished["evaluate"]
    assert result.returncode == 0, result.stderr
    check_evaluation(result.stdout, folder)
    assert {path.name for path in folder.iterdir()} == {"bin", "out"}


def test_the_embedded_evaluation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([OUR_ID, "-n", "2", "-o", "out", "--run.name", "run"]) == 0
    check_evaluation(capsys.readouterr().out, tmp_path)


def check_evaluation(said: str, folder: Path) -> None:
    assert "model: the embedded student (change: -m MODEL" in said
    assert "problems: embedded test, 2 (change: --env.taskset.source gsm8k" in said
    assert all(name in said for name in ("reward ", "correctness_reward ", "perplexity_reward "))
    lines = (folder / "out" / "run" / "traces.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    assert [episode["ok"] for episode in episodes] == [True, True]
    assert {episode["task"]["key"] for episode in episodes} == {e["task"]["data"]["id"] for e in episodes}
    [trace] = episodes[0]["traces"]
    assert set(trace["rewards"]) == {"combined_reward"} and trace["rewards"]["combined_reward"]["weight"] == 1.0
    assert set(trace["metrics"]) == {"correctness_reward", "perplexity_reward"}
    assert trace["agent"]["config"]["client"]["base_url"] == "embedded://student/v1"
    assert trace["calls"][0]["usage"]["completion_tokens"] > 0


@pytest.mark.slow
def test_training_is_handed_over_under_verifiers_own_script(finished) -> None:
    result, _ = finished["train help"]
    assert result.returncode == 0, result.stderr
    assert "--num-examples" in result.stdout


@pytest.mark.slow
def test_other_environments_pass_through_untouched(finished) -> None:
    ours, theirs = finished["other under ours"][0], finished["other under verifiers"][0]
    assert theirs.returncode == 1
    assert "taskset 'no-such-environment' not found" in theirs.stderr
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "('torch', 'verifiers', 'transformers', 'datasets', 'aiohttp', 'pydantic', 'yaml')"
    code = f"import sys, alphazero_llm_trainer; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_and_training_need_no_verifiers() -> None:
    code = (
        "import sys; from alphazero_llm_trainer.environment.__main__ import main\n"
        f"assert main(['{OUR_ID}', '--help']) == 0\n"
        "assert 'verifiers' not in sys.modules and 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--tier free|production" in result.stdout and f"vf-eval {OUR_ID} -s" in result.stdout


@pytest.mark.parametrize(
    ("argv", "ours"),
    [
        ([OUR_ID], True),
        (["alphazero_llm_trainer"], True),
        (["someone/alphazero-llm-trainer@0.1.0", "-n", "2"], True),
        (["--env.taskset.id", OUR_ID], True),
        ([f"--env.taskset.id={OUR_ID}", "-s"], True),
        (["gsm8k", "-s"], False),
        (["gsm8k", "-m", OUR_ID], False),
        (["--help"], False),
        (["@", "file.toml"], False),
        ([], False),
        (["-n", "2", "--", "--env.taskset.id", OUR_ID], False),
    ],
)
def test_which_command_lines_are_ours(argv: list[str], ours: bool) -> None:
    assert names_us(argv) is ours
    assert (plan(argv).mode is not Mode.PASS) is ours
    if not ours:
        assert plan(argv).argv == tuple(argv)


@pytest.mark.parametrize(
    ("rest", "mode", "argv"),
    [
        (["-s"], Mode.TRAIN, ()),
        (["-s", "--"], Mode.TRAIN, ()),
        (["-s", "--", "--num-examples", "100", "--use-grpo"], Mode.TRAIN, ("--num-examples", "100", "--use-grpo")),
        (["-s", "--help"], Mode.TRAIN, ("--help",)),
        (["-s", "--", "--set", "a=--"], Mode.TRAIN, ("--set", "a=--")),
        (["--help"], Mode.HELP, ()),
        (["-n", "2", "-h"], Mode.HELP, ()),
        (["--help-all"], Mode.HELP_ALL, ()),
        ([], Mode.EVALUATE, (OUR_ID,)),
        (["-n", "2", "--tier", "free"], Mode.EVALUATE, (OUR_ID, "-n", "2", "--env.taskset.tier", "free")),
    ],
)
def test_plans(rest: list[str], mode: Mode, argv: tuple[str, ...]) -> None:
    wanted = plan([OUR_ID, *rest])
    assert (wanted.mode, wanted.argv) == (mode, argv)


@pytest.mark.parametrize(
    ("rest", "out"),
    [
        (["--tier=production"], ["--env.taskset.tier", "production"]),
        (["--use-student-model"], ["--env.taskset.use-student-model", "true"]),
        (["--use-student-model", "false", "-n", "1"], ["--env.taskset.use-student-model", "false", "-n", "1"]),
        (["--use-student-model", "-n", "1"], ["--env.taskset.use-student-model", "true", "-n", "1"]),
        (["--use-student-model=True"], ["--env.taskset.use-student-model", "true"]),
        (["--no-use-student-model"], ["--env.taskset.use-student-model", "false"]),
        (["-m", "x", "--client.base-url", "y"], ["-m", "x", "--client.base-url", "y"]),
    ],
)
def test_short_flags_become_typed_ones(rest: list[str], out: list[str]) -> None:
    assert translate(rest) == out


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        (["--", "--num-examples", "1"], "needs -s before it"),
        (["-s", "--num-examples", "1"], "--num-examples stands before `--`"),
        (["--tier"], "--tier needs a value"),
        (["--tier", "-n", "2"], "--tier needs a value"),
        (["--use-student-model=maybe"], "--use-student-model is 'maybe'"),
        (["--tier", "platinum"], "--env.taskset.tier is 'platinum': input should be"),
        (["--tier", "embedded"], "--env.taskset.tier is 'embedded'"),
        (["--bogus", "3"], "there is no option --bogus"),
        (["--env.taskset.bogus", "3"], "there is no option --env.taskset.bogus"),
        (["stray"], "Unrecognized arguments: stray"),
        (["-n", "0"], "--select.limit is '0'"),
        (["--env.taskset.split", "dev"], "--env.taskset.split is 'dev'"),
        (["--env.agent.harness.simulations", "0"], "--env.agent.harness.simulations is '0'"),
        (["-m", "some-model"], "names a model but no endpoint"),
        (["--client.base-url", "http://127.0.0.1:9/v1"], "names an endpoint but no model"),
        (["--env.id", "best-of-n"], "this package's own environment only"),
        (["--env.taskset.config-file", "absent.yaml"], "config file absent.yaml can't be read"),
        (["--env.taskset.path", "absent", "--env.taskset.source", "gsm8k"], "absent has neither test.jsonl"),
    ],
)
def test_what_a_user_can_fix_is_one_sentence_and_exit_code_2(
    rest: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    assert run([OUR_ID, *rest]) == EXIT_USER_ERROR
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vf-eval: ")]
    assert sentence in line


def test_half_understood_messages_stay_readable() -> None:
    assert one_sentence("plain\nwords") == "plain words"
    nearly = "Failed to validate config: 1 validation error for X\n--a.b\n  Extra inputs are not permitted"
    assert one_sentence(nearly + " (got '1')  — did you mean --a.c?") == (
        "there is no option --a.b: did you mean --a.c?"
    )


EMBEDDED = ["-m", "embedded-student", "--client.base-url", "embedded://student/v1"]
REMOTE = ["-m", "x", "--client.base-url", "http://127.0.0.1:9/v1"]


def setting(name: str, value: str) -> list[str]:
    return [f"--env.taskset.{name}", value]


@pytest.mark.parametrize(
    ("rest", "added"),
    [
        ([], [*EMBEDDED, *setting("source", "embedded"), *setting("use-student-model", "true"), "--no-push"]),
        (REMOTE, [*setting("source", "gsm8k"), *setting("use-student-model", "false"), "--no-push"]),
        ([*REMOTE, "--push", *setting("source", "embedded"), *setting("use-student-model", "true")], []),
        (
            [*setting("source", "gsm8k"), *setting("use-student-model", "false"), "-n", "100"],
            [*EMBEDDED, *setting("eval-size", "100"), "--no-push"],
        ),
        ([*EMBEDDED, "-n", "3"], [*setting("source", "embedded"), *setting("use-student-model", "true"), "--no-push"]),
    ],
)
def test_what_is_left_open_is_filled_in_as_flags(rest: list[str], added: list[str]) -> None:
    argv = [OUR_ID, *rest]
    assert added_defaults(parse(argv)) == added
    assert added_defaults(parse([*argv, *added])) == []


def test_a_configuration_file_is_respected(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(
        json.dumps({"model": "x", "client": {"base_url": "http://127.0.0.1:9/v1"}, "env": {"taskset": {"id": OUR_ID}}})
    )
    added = added_defaults(parse([OUR_ID, "@", str(file)]))
    assert added == [*setting("source", "gsm8k"), *setting("use-student-model", "false"), "--no-push"]


def test_a_run_whose_rollouts_all_failed_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run([OUR_ID, *REMOTE, *setting("source", "embedded"), "-n", "2", "-o", "out", "--run.name", "run"])
    printed = capsys.readouterr()
    assert code == EXIT_ALL_FAILED
    assert "2 rollouts, 2 failed" in printed.out
    assert "vf-eval: every rollout failed, the first one with:" in printed.err


def test_the_summary_counts_only_what_ended(tmp_path: Path) -> None:
    part = {"score": 1.0, "weight": 0.4}
    ended = {"ok": True, "traces": [{"rewards": {"a": part, "b": {"score": 0.5, "weight": 0.6}, "c": None}}]}
    failed = {"ok": False, "errors": [], "traces": [{"errors": [{"message": "no\nroute"}], "rewards": {"a": None}}]}
    (tmp_path / report.TRACES).write_text("".join(json.dumps(row) + "\n" for row in (ended, failed)))
    summary = report.summarise(tmp_path)
    assert (summary.total, summary.failed, summary.first_error) == (2, 1, "no route")
    assert summary.means == pytest.approx({"reward": 0.7, "a": 1.0, "b": 0.5})


def test_plan_errors_are_config_errors() -> None:
    with pytest.raises(ConfigError):
        plan([OUR_ID, "--", "x"])
