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
from alphazero_llm_trainer.runs import tracking
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.run import Run
from alphazero_llm_trainer.runs.start import check_start, prepare

VARIABLES = ("MLFLOW_TRACKING_URI", "WANDB_DIR", "WANDB_MODE", "WANDB_API_KEY", "TRACKIO_DIR",
             "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "MLFLOW_RUN_ID",
             "MLFLOW_EXPERIMENT_NAME")  # fmt: skip


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


ROUNDS = [(8, {"mean_reward": 0.25, "cost": {"sampled_tokens": 40}}),
          (12, {"mean_reward": 0.5, "cost": {"sampled_tokens": 70}})]  # fmt: skip


def tracked(kind, path):
    """The folder of two rounds under the tracker `kind`."""
    if find_spec(kind) is None:
        pytest.skip(f"NOT TESTED: {kind} is of the group all-tests")
    path.mkdir()
    tracker = tracking.Tracking(kind, path, grpo_config(["student=embedded"]).model_dump())
    for step, values in ROUNDS:
        tracker.log(values, step)
    tracker.finish()
    return path / "track"


def test_mlflow_has_the_run(tmp_path, home):
    mlflow = pytest.importorskip("mlflow")

    track = tracked("mlflow", tmp_path / "run-001")
    client = mlflow.MlflowClient(f"sqlite:///{track / 'mlflow.db'}")
    [experiment] = [one for one in client.search_experiments() if one.name == tracking.PROJECT]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "run-001"
    assert found.data.params["train.clip_high"] == "0.28"
    assert found.data.params["search.budget_tokens"] == "None"
    assert not any(name.startswith("teacher_tiers") for name in found.data.params)
    logged = client.get_metric_history(found.info.run_id, "cost.sampled_tokens")
    assert [(one.step, one.value) for one in logged] == [(8, 40), (12, 70)]
    assert strays(home) == []


def test_wandb_offline_has_the_run(tmp_path, home):
    track = tracked("wandb", tmp_path / "run-001")
    [log] = (track / "wandb").glob("offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60  # its own process writes the file
    while b"mean_reward" not in log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert strays(home) == []


def test_tensorboard_has_what_a_run_measures(tmp_path, home):
    pytest.importorskip("tensorboard", reason="NOT TESTED: it is of the group all-tests")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train = """num_examples=12 questions_per_round=8 save_every=8 eval_size=4 validation_size=4
    demonstrations=20 rows_per_round=16 track=tensorboard""".split()
    sets = ["student=embedded", "rewards.use_student_model=false"]
    run = Run(prepare(grpo_config([*sets, *(f"train.{one}" for one in train)])))
    run.load()
    folder = RunFolder(tmp_path / "run-001")
    folder.path.mkdir()
    assert run.execute(folder) is not None
    events = EventAccumulator(str(folder.path / "track" / "tensorboard"))
    events.Reload()
    kept = [line["mean_reward"] for line in folder.read_metrics() if "mean_reward" in line]
    rewards = [(one.step, one.value) for one in events.Scalars("mean_reward")]
    assert rewards == [(8, pytest.approx(kept[0])), (12, pytest.approx(kept[1]))]
    assert [one.step for one in events.Scalars("total.sampled_tokens")] == [12]
    [after] = events.Scalars("test.after")
    assert after.value == pytest.approx(folder.read_card()["after"]["accuracy"]["value"])
    assert strays(home) == []


@pytest.mark.slow
def test_trackio_has_the_run(tmp_path, home):
    """In a process of its own: the library reads its folder's variable when it is first
    imported.
    """
    if find_spec("trackio") is None:
        pytest.skip("NOT TESTED: trackio is of the group all-tests")
    script = (
        "import pathlib, sys, test_tracking as t; t.tracked('trackio', pathlib.Path(sys.argv[1]))"
    )
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
    track = tmp_path / "run-001" / "track"
    with sqlite3.connect(track / "trackio" / f"{tracking.PROJECT}.db") as store:
        logged = [
            (step, json.loads(values))
            for step, values in store.execute("select step, metrics from metrics")
        ]
    rewards = [(step, values["mean_reward"]) for step, values in logged if "mean_reward" in values]
    assert rewards == [(8, 0.25), (12, 0.5)]
    assert strays(home) == []


def test_a_missing_library_is_named_before_anything_is_made(
    monkeypatch,
):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"train\.track is mlflow, which is not installed"):
        check_start(grpo_config([{"student": "embedded", "train": {"track": "mlflow"}}]))
