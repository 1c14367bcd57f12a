"""AlphaZero for language-model reasoning.

`import alphazero_llm_trainer` loads nothing heavy: the three classes below, which verifiers looks for, are imported
when they are first asked for.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .environment.env import AlphaZeroEnv
    from .environment.harness import AlphaZeroHarness
    from .environment.taskset import AlphaZeroTaskset

__version__: str  # looked up in the installed package's metadata when it is asked for
__all__ = ["AlphaZeroEnv", "AlphaZeroHarness", "AlphaZeroTaskset"]

_HOMES = {
    "AlphaZeroEnv": "alphazero_llm_trainer.environment.env",
    "AlphaZeroHarness": "alphazero_llm_trainer.environment.harness",
    "AlphaZeroTaskset": "alphazero_llm_trainer.environment.taskset",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("alphazero-llm-trainer")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # verifiers asks for the harness while env.py is still loading; getattr then answers AttributeError, as it expects.
    return getattr(import_module(_HOMES[name]), name)


def take_over_vf_eval() -> None:
    """Restart verifiers' own `vf-eval` process as our front end when it was called for this package.

    verifiers and this package declare a script of the same name and installers don't say whose ends up on disk. Its
    `main` imports this package before it reads its flags, some of which (`-s`, `--`, `--tier`) it doesn't know.
    """
    if "verifiers.v1.cli.eval.main" not in sys.modules:
        return
    at = next((i for i, argument in enumerate(sys.orig_argv[1:3], 1) if Path(argument).stem == "vf-eval"), None)
    if at is None:
        return
    from .environment.argv import names_us

    argv = sys.orig_argv[at + 1 :]
    if names_us(argv):
        sys.stdout.flush()
        sys.stderr.flush()
        # A fresh process, not a call: this import holds the module lock that the front end's own imports need.
        os.execv(sys.executable, [sys.executable, "-m", "alphazero_llm_trainer.environment", *argv])


take_over_vf_eval()
