"""Train on exported trees with prime-rl: each token has the advantage that its tree gave it.

In prime-rl's environment, with this package in it and the model that sampled as `model.name`:

    python prime_rl_trees.py @ prime_rl.toml @ prime_rl_trees.toml

The trees take the place of sampling, and after the first step they are off-policy: read them once.
prime-rl's table of algorithms is closed and its launcher starts `orchestrator` by that name, so
this file adds an algorithm in both processes.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.episode import WireEpisode

__all__ = ["Trees", "TreesEnv"]


class TreesConfig(vf.TasksetConfig):
    file: Path


class Trees(vf.Taskset[vf.Task, TreesConfig]):
    def load(self) -> Any:
        for at, line in enumerate(self.config.file.open(encoding="utf-8")):
            data = WireEpisode.model_validate_json(line).task.data
            yield vf.Task(vf.TaskData(idx=at, id=data.id, prompt=data.prompt))


class TreesEnv(vf.SingleAgentEnv):
    async def run_episode(self, task: Any, ctx: Any, *, on_trace: Any = None, **_: Any) -> Any:
        """The tree of the task's line; nothing is sampled."""
        lines = enumerate(self.config.taskset.file.open(encoding="utf-8"))
        episode = WireEpisode.model_validate_json(dict(lines)[task.data.idx])
        [trace] = episode.traces
        trace.id = uuid4().hex  # prime-rl keys a batch by it, and may read a line again
        named = {"type": type(task).__name__, "key": task.key, "hash": task.hash}
        trace.task = episode.task = vf.TraceTask(data=task.data, **named)
        if on_trace is not None:  # an environment server sends what it is told here
            on_trace(trace)
        return episode


def register() -> None:
    """Add `type = "tree"` to prime-rl's algorithms, before the classes that read its files."""
    try:
        from prime_rl.configs import algorithm
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} isn't here: run this in prime-rl's environment") from None

    class TreeConfig(algorithm.BaseAlgoConfig):
        type: Literal["tree"] = "tree"

    algorithm.AlgoConfig = Annotated[algorithm.AlgoConfig | TreeConfig, Field(discriminator="type")]
    from prime_rl.orchestrator import algo

    class TreeAlgorithm(algo.Algorithm):
        async def score_group(self, episodes: list[Any]) -> None:
            """Leave the advantages of the traces' nodes as they are, where there are any."""
            for trace in (trace for episode in episodes for trace in episode.traces):
                if any(len(node.advantages or ()) != sum(node.mask) for node in trace.nodes):
                    raise ValueError(f"trace {trace.id} has sampled tokens without an advantage")

    algo.ALGORITHM_CLASSES["tree"] = TreeAlgorithm


if __name__ == "__main__":
    register()
    if os.environ.pop("TREES_ORCHESTRATOR", None):
        from prime_rl.entrypoints.orchestrator import main
    else:
        from prime_rl.entrypoints.rl import main

        here, command = Path(__file__).resolve(), Path(tempfile.mkdtemp(), "orchestrator")
        again = f'TREES_ORCHESTRATOR=1 exec "{sys.executable}" "{here}" "$@"'
        command.write_text(f"#!/bin/sh\n{again}\n", "utf-8")
        command.chmod(0o700)
        os.environ["PATH"] = f"{command.parent}:{os.environ['PATH']}"
        os.environ["PYTHONPATH"] = f"{here.parent}:{os.environ.get('PYTHONPATH', '')}"
    main()
