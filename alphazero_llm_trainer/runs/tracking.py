"""Experiment tracking through accelerate's trackers: MLflow, Weights & Biases, Trackio or
TensorBoard.

The stores are in the run's folder, below `track/`, unless the library's own environment variables
name another place (MLFLOW_TRACKING_URI, WANDB_DIR, TRACKIO_DIR). W&B is offline unless
WANDB_API_KEY or WANDB_MODE says otherwise.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..files import flatten_keys
from ..types import Facts

PROJECT = "alphazero-llm-trainer"
NOT_PARAMETERS = ("models", "teacher_tiers")  # lists of what could be used
# By tracker: environment variables without which its library would write below the home folder, or
# talk; and its options.
STORES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "mlflow": (
        {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_TRACKING_URI": "sqlite:///{store}/mlflow.db"},
        {"logging_dir": "file://{store}/artifacts", "run_name": "{run}"},
    ),
    "wandb": (
        dict.fromkeys(
            ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"), "{store}"
        )
        | {"WANDB_SILENT": "true"},
        {"name": "{run}"},
    ),
    "trackio": (
        {"TRACKIO_DIR": "{store}/trackio"},
        {"name": "{run}", "resume": "allow", "embed": False},
    ),
    "tensorboard": ({}, {"logging_dir": "{store}"}),
}


def check_tracker(kind: str) -> None:
    """Raises ConfigError where the library of the tracker `kind` is not installed."""
    if kind != "none" and find_spec(kind) is None:
        raise ConfigError(
            f"train.track is {kind}, which is not installed: "
            "install alphazero-llm-trainer[track] or set train.track=none"
        )


class Tracking:
    """A run's tracker; `kind` "none" is none. What the libraries print goes to standard error.

    `config` is what the run was started with: nested mappings become dotted names, lists and None
    text.
    """

    def __init__(self, kind: str, folder: Path, config: Facts) -> None:
        self.tracker: Any = None
        if kind == "none":
            return
        store = (folder / "track").absolute()
        store.mkdir(parents=True, exist_ok=True)
        variables, options = STORES[kind]
        places = {"store": store, "run": folder.name}
        for name, value in variables.items():
            os.environ.setdefault(name, value.format(**places))
        options = {k: v.format(**places) if isinstance(v, str) else v for k, v in options.items()}
        if kind == "wandb" and not {"WANDB_MODE", "WANDB_API_KEY"} & os.environ.keys():
            options["mode"] = "offline"  # `wandb sync` uploads it later
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # the trackers ask it which process they are in
        kept = {key: value for key, value in config.items() if key not in NOT_PARAMETERS}
        with redirect_stdout(sys.stderr):
            self.tracker = LOGGER_TYPE_TO_CLASS[kind](
                PROJECT if kind != "tensorboard" else kind, **options
            )
            self.tracker.start()
            self.tracker.store_init_configuration(
                {
                    k: v if isinstance(v, bool | int | float | str) else str(v)
                    for k, v in flatten_keys(kept)
                }
            )

    def log(self, values: Facts, step: int) -> None:
        """Numbers of a round, a validation or the end by dotted names; `step` is the training
        questions done.
        """
        if self.tracker is not None:
            self.tracker.log(
                {k: float(v) for k, v in flatten_keys(values) if isinstance(v, int | float)},
                step=step,
            )

    def finish(self) -> None:
        """The run ended, however."""
        if self.tracker is not None:
            with redirect_stdout(sys.stderr):
                self.tracker.finish()
