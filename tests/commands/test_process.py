"""What a process of this package does with its own memory."""

import subprocess
import sys
from pathlib import Path

import alphazero_llm_trainer

PACKAGE = Path(alphazero_llm_trainer.__file__).parent


def test_what_was_frozen_is_thawed_at_the_end():
    """Frozen types are in no last collection, and nanobind (Triton 3.9) reports each of them as
    leaked.
    """
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print('frozen at the end:', gc.get_freeze_count()))\n"  # runs last
        "from alphazero_llm_trainer.engine.background import freeze_loaded\n"
        "freeze_loaded()\n"
        "print('frozen:', gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "frozen: True\nfrozen at the end: 0\n"


def test_nothing_is_frozen_elsewhere():
    files = [
        path for path in PACKAGE.rglob("*.py") if "gc.freeze" in path.read_text(encoding="utf-8")
    ]
    assert [path.name for path in files] == ["background.py"]
