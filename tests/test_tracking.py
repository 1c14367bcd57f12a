"""A run's figures in the trackers' own offline stores, written by the real libraries and read
back.
"""

import json
import os
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import grpo_config

from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.training import tracking
from alphazero_llm_trainer.training.loop import Run
from alphazero_llm_trainer.training.run import RunFolder
from alphazero_llm_trainer.training.start import check_start, prepare

VARIABLES = ("MLFLOW_TRACKING_URI", "WANDB_DIR", "WANDB_MODE", "WANDB_API_KEY", "TRACKIO_DIR", "WANDB_CACHE_DIR",
             "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME")  # fmt: skip


@pytest.fixture
def home(monkeypatch, tmp_path):
    """An empty home folder, and none of the trackers' variables set: nothing may be written outside
    the run.
    """
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return folder


def strays(home):
    """Files that a tracker left in the home folder; matplotlib keeps its font list there."""
    return [path for path in home.rglob("*") if path.is_file() and "matplotlib" not in path.parts]


def tracked(kind, path):
    """Two rounds of a few questions, 8 and 4, under the tracker `kind`."""
    if find_spec(kind) is None:
        pytest.skip(f"NOT TESTED: {kind} is of the group all-tests")
    config = grpo_config(
        [
            {"student": "embedded", "rewards": {"use_student_model": False}},
            {
                "train": {
                    "num_examples": 12,
                    "questions_per_round": 8,
                    "save_every": 8,
                    "eval_size": 10,
                }
            },
            {
                "train": {
                    "validation_size": 10,
                    "demonstrations": 20,
                    "rows_per_round": 16,
                    "track": kind,
                }
            },
        ]
    )
    run, folder = Run(prepare(config)), RunFolder(path)
    run.load()
    path.mkdir()
    assert run.execute(folder) is not None
    return folder


def rounds(folder):
    found = [line for line in folder.read_metrics() if "mean_reward" in line]
    assert len(found) == 2
    return found


def test_mlflow_has_the_run(tmp_path, home):
    import mlflow

    folder = tracked("mlflow", tmp_path / "run-001")
    client = mlflow.MlflowClient(f"sqlite:///{folder.path / 'track' / 'mlflow.db'}")
    [experiment] = [one for one in client.search_experiments() if one.name == tracking.PROJECT]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "run-001"
    assert found.data.params["train.clip_high"] == "0.28"
    assert found.data.params["search.budget_tokens"] == "None"
    assert not any(name.startswith("teacher_tiers") for name in found.data.params)
    for name in ("mean_reward", "simulations", "nodes_per_tree", "cost.sampled_tokens"):
        outer, _, inner = name.partition(".")
        logged = {
            (one.step, one.value) for one in client.get_metric_history(found.info.run_id, name)
        }
        kept = {
            (min(8 * (i + 1), 12), line[outer][inner] if inner else line[outer])
            for i, line in enumerate(rounds(folder))
        }
        assert kept <= logged
    assert found.data.metrics["test.after"] == folder.read_card()["after"]["accuracy"]["value"]
    assert strays(home) == []


def test_wandb_offline_and_tensorboard_have_the_run(tmp_path, home):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tracked("wandb", tmp_path / "run-001")
    [log] = (folder.path / "track" / "wandb").glob("offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60  # its own process writes the file
    while b"mean_reward" not in log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert strays(home) == []
    folder = tracked("tensorboard", tmp_path / "run-002")
    events = EventAccumulator(str(folder.path / "track" / "tensorboard"))
    events.Reload()
    rewards = [(one.step, one.value) for one in events.Scalars("mean_reward")]
    assert rewards == [
        (step, pytest.approx(line["mean_reward"]))
        for step, line in zip((8, 12), rounds(folder), strict=True)
    ]
    assert [one.step for one in events.Scalars("total.sampled_tokens")] == [12]
    assert strays(home) == []


@pytest.mark.slow
def test_trackio_has_the_run(tmp_path, home):
    """In a process of its own: the library reads its folder's variable when it is first
    imported.
    """
    if find_spec("trackio") is None:
        pytest.skip("NOT TESTED: trackio is of the group all-tests")
    script = "import sys; from pathlib import Path; from test_tracking import tracked; tracked('trackio', Path(sys.argv[1]))"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run-001"],
        check=True,
        env=environment,
        timeout=300,
    )
    folder = RunFolder(tmp_path / "run-001")
    with sqlite3.connect(folder.path / "track" / "trackio" / f"{tracking.PROJECT}.db") as store:
        logged = [
            (step, json.loads(values))
            for step, values in store.execute("select step, metrics from metrics")
        ]
    losses = [(step, values["loss"]) for step, values in logged if "loss" in values]
    steps = (8, 12)  # of 12 questions in rounds of eight
    assert losses == [
        (step, line["loss"]) for step, line in zip(steps, rounds(folder), strict=True)
    ]
    assert strays(home) == []


def test_a_missing_library_is_named_before_anything_is_made(
    monkeypatch,
):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"train\.track is mlflow, which is not installed"):
        check_start(grpo_config([{"student": "embedded", "train": {"track": "mlflow"}}]))
