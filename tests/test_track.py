"""A run's figures in the trackers' own offline stores, written by the real libraries and read back."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.training import track
from alphazero_llm_trainer.training.loop import Run
from alphazero_llm_trainer.training.run import RunFolder

VARIABLES = ("MLFLOW_TRACKING_URI", "WANDB_DIR", "WANDB_MODE", "WANDB_API_KEY", "TRACKIO_DIR", "WANDB_CACHE_DIR",
             "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME")  # fmt: skip


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home folder, and none of the trackers' variables set: nothing may be written outside the run."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return folder


def strays(home: Path) -> list[Path]:
    """Files that a tracker left in the home folder; matplotlib keeps its font list there."""
    return [path for path in home.rglob("*") if path.is_file() and "matplotlib" not in path.parts]


def tracked(kind: str, path: Path, stop_after: int | None = None, resume: bool = False) -> RunFolder:
    """Two rounds of a few questions under the tracker `kind`; stopped after so many trees."""
    config = load_config(
        overrides=[
            {"student": "embedded", "rewards": {"use_student_model": False}},
            {"train": {"num_examples": 16, "questions_per_round": 8, "save_every": 8, "eval_size": 10}},
            {"train": {"validation_size": 10, "demonstrations": 20, "rows_per_round": 16, "track": kind}},
        ]
    )
    seen: list[int] = []
    run = Run(config, stop=lambda: stop_after is not None and len(seen) >= stop_after)
    run.load()
    run.on_tree = lambda tree: seen.append(1)  # type: ignore[method-assign]
    path.mkdir(exist_ok=True)
    folder = RunFolder(path)
    assert (run.execute(folder, resume) is None) == (stop_after is not None)
    return folder


def rounds(folder: RunFolder) -> list[dict[str, Any]]:
    found = [line for line in folder.read_metrics() if "mean_reward" in line]
    assert len(found) == 2
    return found


def test_mlflow_has_the_run_and_goes_on_after_a_stop(tmp_path: Path, home: Path) -> None:
    import mlflow

    tracked("mlflow", tmp_path / "run-001", stop_after=12)
    folder = tracked("mlflow", tmp_path / "run-001", resume=True)
    store = folder.path / "track" / "mlflow"
    client = mlflow.MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    [experiment] = [one for one in client.search_experiments() if one.name == track.PROJECT]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run-001"
    assert found.data.params["train.grpo.clip_high"] == "0.28"
    assert found.data.params["search.budget_tokens"] == "None"
    assert not any(name.startswith("teacher_tiers") for name in found.data.params)
    for name in ("mean_reward", "simulations", "nodes_per_tree", "cost.sampled_tokens"):
        outer, _, inner = name.partition(".")
        logged = {(one.step, one.value) for one in client.get_metric_history(found.info.run_id, name)}
        kept = {(8 * (i + 1), line[outer][inner] if inner else line[outer]) for i, line in enumerate(rounds(folder))}
        assert kept <= logged
    assert found.data.metrics["test.after"] == folder.read_card()["after"]["accuracy"]["value"]
    names = {one.path for one in client.list_artifacts(found.info.run_id)}
    assert names == {"run.json", "metrics.jsonl", "report.html"}
    assert strays(home) == []


def test_wandb_offline_has_the_run(tmp_path: Path, home: Path) -> None:
    folder = tracked("wandb", tmp_path / "run-001")
    [log] = (folder.path / "track" / "wandb").glob("offline-run-*/run-*.wandb")
    history, settings, files = wandb_records(log)
    assert json.loads(settings["train.grpo.epochs"]) == 4
    for i, line in enumerate(rounds(folder)):
        logged = next(one for one in history if one.get("_step") == 8 * (i + 1) and "mean_reward" in one)
        assert logged["mean_reward"] == pytest.approx(line["mean_reward"])
        assert logged["depth"] == pytest.approx(line["depth"])
    assert history[-1]["test.after"] == folder.read_card()["after"]["accuracy"]["value"]
    assert {"run.json", "metrics.jsonl", "report.html"} <= files
    assert strays(home) == []


def wandb_records(log: Path) -> tuple[list[dict[str, Any]], dict[str, str], set[str]]:
    """History rows, configuration and artifact files of an offline run's transaction log."""
    from wandb.proto import wandb_internal_pb2

    history: list[dict[str, Any]] = []
    settings: dict[str, str] = {}
    files: set[str] = set()
    for data in leveldb_log(log.read_bytes()[7:]):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            history.append({one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in items})
        elif kind == "config":
            settings |= {one.key or ".".join(one.nested_key): one.value_json for one in record.config.update}
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            files |= {one.path for one in record.request.log_artifact.artifact.manifest.contents}
        elif kind == "artifact":
            files |= {one.path for one in record.artifact.manifest.contents}
    return history, settings, files


def leveldb_log(raw: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB; each fragment is checksum, length, type and bytes."""
    at, whole, block = 0, b"", 32768
    offset = 7  # the file's own header, already cut off, counts as a part of the first block
    while at + 7 <= len(raw):
        left = block - (at + offset) % block
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        whole += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield whole
            whole = b""


def test_tensorboard_and_trackio_have_the_run(tmp_path: Path, home: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tracked("tensorboard", tmp_path / "run-001")
    events = EventAccumulator(str(folder.path / "track" / "tensorboard"))
    events.Reload()
    rewards = [(one.step, one.value) for one in events.Scalars("mean_reward")]
    assert rewards == [(8 * (i + 1), pytest.approx(line["mean_reward"])) for i, line in enumerate(rounds(folder))]
    folder = tracked("trackio", tmp_path / "run-002")
    with sqlite3.connect(folder.path / "track" / "trackio" / f"{track.PROJECT}.db") as store:
        logged = [(step, json.loads(values)) for step, values in store.execute("select step, metrics from metrics")]
    losses = [(step, values["loss"]) for step, values in logged if "loss" in values]
    assert losses == [(8 * (i + 1), line["loss"]) for i, line in enumerate(rounds(folder))]
    assert strays(home) == []


def test_a_missing_library_is_named_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"train\.track is mlflow, which is not installed"):
        Run(load_config(overrides=[{"student": "embedded", "train": {"track": "mlflow"}}])).load()


def test_nested_values_become_dotted_numbers() -> None:
    assert track.numbers({"a": {"b": 1, "c": {"d": True}}, "e": "text", "f": None}) == {"a.b": 1.0, "a.c.d": 1.0}
