"""Processes of this package's commands. They are forked from one that has imported PyTorch and
transformers once: each import takes ten seconds.
"""

import os
import runpy
import sys
import time
from multiprocessing import get_context

from tables import CHECKOUT

PACKAGE = "alphazero_llm_trainer"
TRAIN = str(CHECKOUT / "train_vllm.py")
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "peft", "accelerate", "transformers.models.llama.modeling_llama"]
    + [
        f"{PACKAGE}.{name}"
        for name in ("runs.run", "serve.app", "serve.load_models", "serve.listen")
    ]
)


def begin(command, folder, environment):
    """Run a script or a module as `python` does, with its output in files of `folder`."""
    for number, stream in enumerate(("stdout", "stderr"), 1):
        os.dup2(os.open(folder / stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    run = runpy.run_path if command[0].endswith(".py") else runpy.run_module
    run(command[0], run_name="__main__")


class Started:
    """A process that runs `command` in `folder`."""

    def __init__(self, folder, *command, **variables):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if k != "ALPHAZERO_API_KEY"}
        environment |= {"OMP_NUM_THREADS": "1", **variables}
        self.process = FORKS.Process(
            target=begin, args=([*command], folder, environment), daemon=True
        )
        self.process.start()

    def said(self, stream="stdout"):
        file = self.folder / stream
        return file.read_text() if file.exists() else ""

    @property
    def runs(self):
        return self.process.is_alive()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.join()

    def wait(self, seconds=500):
        """The exit code."""
        self.process.join(seconds)
        assert not self.runs, "it doesn't end"
        return self.process.exitcode


def served(folder, *arguments, **more):
    """`serve` on a free port, which may still be loading: `url` waits for it."""
    command = (PACKAGE, "serve", "--port", "0", *arguments)
    return Started(folder, *command, **more)


def url(server):
    """Where a server answers, once it does."""
    while "answers at " not in server.said():
        assert server.runs, server.said("stderr")
        time.sleep(0.02)
    return server.said().split("answers at ")[1].split("/v1")[0]
