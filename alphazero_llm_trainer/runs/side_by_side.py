"""A run with several seeds: processes of `train`, side by side as far as there are cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..config.load import cuda_here
from ..errors import ConfigError
from ..files import make_folder, numbered_folders
from ..live import Progress, StopAsked

LOG = "train.log"  # of a seed's folder: what its process says
LOOK_SECONDS = 0.1
TELL_SECONDS = 30
KILL_SECONDS = 20  # for processes that were asked twice to end
# A process that is killed when the one that started it is gone, whatever ended that one: prctl's
# PR_SET_PDEATHSIG is 1, SIGKILL 9.
BEGIN = f"""import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
from {__package__.partition(".")[0]}.cli.main import main
sys.exit(main())
"""


def start_seed(
    words: Sequence[str], seed: int, folder: Path, threads: int
) -> subprocess.Popen[bytes]:
    """A process that trains with `seed` in `folder`, or goes on with the run that is there."""
    make_folder(folder)
    own = ["--seed", str(seed), "--out", str(folder), "--seeds", "1"]
    if numbered_folders(folder, "run"):
        own.append("--resume")
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", BEGIN, "train", *words, *own],
            stdout=log,
            stderr=log,
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            start_new_session=True,  # Ctrl-C reaches it through this process alone
        )


def train_seeds(
    words: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
    stop: StopAsked,
) -> bool:
    """Train with each of `seeds` in `out/seed-N`; False where the user stopped it.

    `words` are the command line of one run. With CUDA one run is at work at a time.

    Raises ConfigError where a run failed: those at work are finished before.
    """
    cores = len(os.sched_getaffinity(0))
    beside = 1 if cuda_here() else min(len(seeds), cores)
    waiting, working, failed = list(seeds), dict[int, subprocess.Popen[bytes]](), list[int]()
    asked, told = False, time.monotonic()
    progress.wait(f"training with {len(seeds)} seeds, {beside} at a time")
    try:
        while working or (waiting and not (failed or asked)):
            if waiting and len(working) < beside and not (failed or asked):
                seed = waiting.pop(0)
                folder = out / f"seed-{seed}"
                working[seed] = start_seed(words, seed, folder, max(1, cores // beside))
                progress.say(f"seed {seed}: what it says is in {folder / LOG}")
                continue
            if stop() and not asked:
                asked = True
                end_all(working.values(), signal.SIGINT)
            for seed in [one for one, process in working.items() if process.poll() is not None]:
                code = working.pop(seed).returncode
                if code == 0:
                    progress.say(f"seed {seed}: trained")
                elif not asked:
                    failed.append(seed)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                for seed in working:
                    progress.say(f"seed {seed}: {last_line(out / f'seed-{seed}' / LOG)}")
            time.sleep(LOOK_SECONDS)
    finally:
        end_all(working.values(), signal.SIGINT)
        until = time.monotonic() + KILL_SECONDS
        for process in working.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
    for seed in failed:
        log = out / f"seed-{seed}" / LOG
        raise ConfigError(
            f"seed {seed} failed ({last_line(log).removeprefix('error: ')}): mend it, and go on "
            f"with --resume; {log} has more"
        )
    return not asked


def last_line(log: Path) -> str:
    """What a seed's process said last."""
    *_, last = ("", *log.read_text(encoding="utf-8", errors="replace").splitlines())
    return last


def end_all(processes: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to those that still run."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
