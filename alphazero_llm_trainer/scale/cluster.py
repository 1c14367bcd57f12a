"""Starting and ending Ray: a cluster of this machine's own, or one that runs already."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from ..errors import ConfigError

PREFIX = "azr"  # of the local cluster's folder in /tmp: its sockets' paths must be short
KNOCK_SECONDS = 10.0
SPARE_CPUS = 1  # an actor that replaces a dead one may come before Ray knows of the death


class Cluster:
    """A connection to Ray; `close` ends it, and the cluster with it where it is our own.

    Args:
        address: of a running cluster ("auto" finds one on this machine), or None to start one here.
        cpus: logical cores of a cluster started here: one an actor.

    Raises ConfigError when Ray is not installed or nothing answers at the address.
    """

    def __init__(self, address: str | None, cpus: int) -> None:
        self.folder: Path | None = None
        if address is None:
            # Without it a local cluster writes a token into the home folder and warns about it.
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A CPU-only actor on a GPU machine keeps its view of the devices without a warning.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "Ray is not installed: install alphazero-llm-trainer[scale], or use --workers 1 and train.lag=0"
            ) from error
        self.ours = not ray.is_initialized()
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if not self.ours:
                pass
            elif address is not None:
                knock(address)
                ray.init(address=address, **quiet)
            else:
                sweep()
                self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/tmp"))
                ray.init(num_cpus=cpus + SPARE_CPUS, include_dashboard=False, _temp_dir=str(self.folder), **quiet)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            self.close()
            where = "on this machine" if address is None else f"at {address}"
            raise ConfigError(
                f"Ray can't be reached {where} ({str(error).splitlines()[0]}): check --address"
            ) from error
        self.gpus = int(ray.cluster_resources().get("GPU", 0))

    def close(self) -> None:
        """Disconnect; a cluster of our own ends, and its folder goes."""
        import ray

        if self.ours:
            ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def knock(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT: Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


def sweep() -> None:
    """Remove folders that local clusters of killed processes left behind."""
    for folder in Path("/tmp").glob(f"{PREFIX}[0-9]*-*"):  # noqa: S108 - where Ray's own sockets must be, whose paths are short
        pid = folder.name[len(PREFIX) :].partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
