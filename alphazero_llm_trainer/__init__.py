"""AlphaZero for language-model reasoning.

`import alphazero_llm_trainer as az` loads nothing heavy: every name below is imported when it is
first asked for. Three classes are what verifiers looks for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.collect import collect
    from .api.compare import compare
    from .api.evaluate import Table, evaluate
    from .api.search import load, search
    from .api.train import TrainingRun, train
    from .api.trees import SavedTree, read_trees
    from .environment.env import AlphaZeroEnv
    from .environment.harness import AlphaZeroHarness
    from .environment.taskset import AlphaZeroTaskset
    from .errors import AlphaZeroError
    from .problems.source import Source
    from .problems.task_list import TaskList
    from .types import Problem, Task

__version__: str  # looked up in the installed package's metadata when it is asked for
_HOMES = {
    "AlphaZeroEnv": "environment.env",
    "AlphaZeroError": "errors",
    "AlphaZeroHarness": "environment.harness",
    "AlphaZeroTaskset": "environment.taskset",
    "Problem": "types",
    "SavedTree": "api.trees",
    "Source": "problems.source",
    "Table": "api.evaluate",
    "Task": "types",
    "TaskList": "problems.task_list",
    "TrainingRun": "api.train",
    "collect": "api.collect",
    "compare": "api.compare",
    "evaluate": "api.evaluate",
    "load": "api.search",
    "read_trees": "api.trees",
    "search": "api.search",
    "train": "api.train",
}
VF_EVAL = "verifiers.v1.cli.eval.main"  # the module of its script
OURS = f"{__name__}.cli.vf_eval"  # and of this package
__all__ = [
    "AlphaZeroEnv",
    "AlphaZeroError",
    "AlphaZeroHarness",
    "AlphaZeroTaskset",
    "Problem",
    "SavedTree",
    "Source",
    "Table",
    "Task",
    "TaskList",
    "TrainingRun",
    "collect",
    "compare",
    "evaluate",
    "load",
    "read_trees",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version("alphazero-llm-trainer")
        except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH, installed nowhere
            return "unknown"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    take_over_vf_eval()
    # verifiers asks for the harness while env.py is still loading; getattr then answers
    # AttributeError, as it expects.
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__


def take_over_vf_eval() -> None:
    """End verifiers' own `vf-eval` as our front end when it was called for this package.

    Its `main` asks for this package's classes before it reads its flags, some of which (`-s`, `--`,
    `--tier`) it doesn't know.
    """
    script = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
    if OURS in sys.modules or VF_EVAL not in (*sys.modules, script):
        return
    words = enumerate(sys.orig_argv)  # Python's own options stand before it, or another runner's
    at = next((i for i, word in words if word == VF_EVAL or Path(word).stem == "vf-eval"), None)
    if at is None:
        return
    from .environment.argv import names_us

    argv = sys.orig_argv[at + 1 :]
    if names_us(argv):
        raise SystemExit(import_module(OURS).main(argv))
