"""Experiment tracking: a run's parameters, metrics and artifacts in MLflow, Weights & Biases, Trackio or TensorBoard.

The stores are in the run's folder, below `track/`, unless the library's own environment variables name another place
(MLFLOW_TRACKING_URI, WANDB_DIR, TRACKIO_DIR). W&B is offline unless WANDB_API_KEY or WANDB_MODE says otherwise. The
libraries are driven by accelerate's trackers; what those lack (artifacts, going on with a stopped run) is here.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.load import flat
from ..errors import ConfigError

PROJECT = "alphazero-llm-trainer"
MLFLOW_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
MISSING = "train.track is {kind}, which is not installed: install alphazero-llm-trainer[track] or set train.track=none"


class Tracker:
    """No tracking, and the interface of the others. `log` takes numbers by name; `step` is the training questions done."""

    def parameters(self, values: Mapping[str, Any]) -> None:
        """What the run was started with; nested mappings become dotted names."""

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of a round, a validation or the end; nested mappings become dotted names, the rest is left out."""

    def artifacts(self, paths: Sequence[Path]) -> None:
        """Files and folders to keep with the run; those that don't exist are left out."""

    def finish(self, status: str) -> None:
        """The run ended: "finished", "stopped" or "failed"."""


class _Accelerated(Tracker):
    """A tracker of accelerate's."""

    def __init__(self, tracker: Any) -> None:
        from accelerate import PartialState

        PartialState()  # accelerate's trackers ask it which process they are in
        self.tracker = tracker
        tracker.start()

    def parameters(self, values: Mapping[str, Any]) -> None:
        self.tracker.store_init_configuration(plain(values))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self.tracker.log(numbers(values), step=step)

    def finish(self, status: str) -> None:
        self.tracker.finish()


class _MLflow(_Accelerated):
    """One SQLite store a run; a resumed run goes on under its id."""

    def __init__(self, folder: Path, name: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would write to the home folder
        import mlflow
        from accelerate.tracking import MLflowTracker

        store, known = folder / "mlflow", folder / "mlflow" / "run-id"
        store.mkdir(parents=True, exist_ok=True)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logs = None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            logs = (store / "artifacts").absolute().as_uri()
            mlflow.set_tracking_uri(f"sqlite:///{(store / 'mlflow.db').absolute()}")
        run_id = known.read_text().strip() if known.exists() else None
        super().__init__(MLflowTracker(PROJECT, logging_dir=logs, run_id=run_id, run_name=name))
        self.mlflow = mlflow
        known.write_text(self.tracker.tracker.info.run_id)

    def artifacts(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if path.is_dir():
                self.mlflow.log_artifacts(str(path), artifact_path=path.name)
            elif path.exists():
                self.mlflow.log_artifact(str(path))

    def finish(self, status: str) -> None:
        self.mlflow.end_run(MLFLOW_STATUS[status])


class _WandB(_Accelerated):
    """Offline without a key; `wandb sync` uploads it later. A resumed run has the id of the first part."""

    def __init__(self, folder: Path, name: str) -> None:
        if "WANDB_DIR" not in os.environ:
            os.environ["WANDB_DIR"] = str(folder)
            for name_of in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):  # else below the home folder
                os.environ.setdefault(name_of, str(folder / "wandb" / "local"))
        import wandb
        from accelerate.tracking import WandBTracker

        store, known = folder / "wandb", folder / "wandb" / "run-id"
        store.mkdir(parents=True, exist_ok=True)
        if not known.exists():
            known.write_text(secrets.token_hex(4))
        os.environ.setdefault("WANDB_SILENT", "true")
        offline = "WANDB_MODE" not in os.environ and "WANDB_API_KEY" not in os.environ
        options: dict[str, Any] = {"name": name, "id": known.read_text().strip(), "resume": "allow"}
        if offline:
            options["mode"] = "offline"
            del options["resume"]  # there is nothing to ask whether it exists
        super().__init__(WandBTracker(PROJECT, **options))
        self.wandb = wandb

    def artifacts(self, paths: Sequence[Path]) -> None:
        artifact = self.wandb.Artifact(f"{self.tracker.run.name}-files", type="run")
        for path in paths:
            if path.is_dir():
                artifact.add_dir(str(path), name=path.name)
            elif path.exists():
                artifact.add_file(str(path))
        self.tracker.run.log_artifact(artifact)

    def finish(self, status: str) -> None:
        self.tracker.run.summary["status"] = status
        self.tracker.run.finish(exit_code=int(status == "failed"))


class _Trackio(_Accelerated):
    """Trackio's own SQLite file; the dashboard is `trackio show`."""

    def __init__(self, folder: Path, name: str) -> None:
        import trackio  # noqa: F401
        from accelerate.tracking import TrackioTracker

        if "TRACKIO_DIR" not in os.environ:
            # Read when trackio is first imported, which TRL does long before a run has its folder.
            for module in [one for key, one in sys.modules.items() if key.partition(".")[0] == "trackio"]:
                if hasattr(module, "TRACKIO_DIR"):
                    vars(module)["TRACKIO_DIR"] = folder.absolute() / "trackio"
        with redirect_stdout(sys.stderr):  # it prints where a command's result belongs
            super().__init__(TrackioTracker(PROJECT, name=name, resume="allow", embed=False))

    def finish(self, status: str) -> None:
        with redirect_stdout(sys.stderr):
            super().finish(status)

    def artifacts(self, paths: Sequence[Path]) -> None:
        """Trackio keeps numbers; the files stay in the run's folder."""


class _TensorBoard(_Accelerated):
    """Event files; parameters are a text, because TensorBoard's own table of them makes a second run."""

    def __init__(self, folder: Path, name: str) -> None:
        import tensorboard  # noqa: F401
        from accelerate.tracking import TensorBoardTracker

        super().__init__(TensorBoardTracker("tensorboard", logging_dir=str(folder)))

    def parameters(self, values: Mapping[str, Any]) -> None:
        lines = "\n".join(f"| {name} | {value} |" for name, value in plain(values).items())
        self.tracker.writer.add_text("parameters", f"| key | value |\n|---|---|\n{lines}")

    def artifacts(self, paths: Sequence[Path]) -> None:
        """TensorBoard keeps numbers; the files stay in the run's folder."""


KINDS: dict[str, Any] = {"mlflow": _MLflow, "wandb": _WandB, "trackio": _Trackio, "tensorboard": _TensorBoard}


def open_tracker(kind: str, folder: Path) -> Tracker:
    """The tracker `kind` ("none" for no tracking) of the run in `folder`."""
    return Tracker() if kind == "none" else KINDS[kind](folder / "track", folder.name)


def check_tracker(kind: str) -> None:
    """Raises ConfigError where the library of the tracker `kind` is not installed."""
    if kind != "none" and find_spec(kind) is None:
        raise ConfigError(MISSING.format(kind=kind))


def plain(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Nested mappings as dotted names; lists and None become text."""
    kept = bool | int | float | str
    return {name: value if isinstance(value, kept) else str(value) for name, value in flat(values)}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among nested values. MLflow takes no commas, brackets and the like in a name; ours have none."""
    return {name: float(value) for name, value in flat(values) if isinstance(value, int | float)}
