"""Each example runs as it is, in an empty folder, and is short."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "best_of_n": "mcts",
    "own_rows": "questions       32",
    "own_task": "responses",
    "verifiers_taskset": "questions       24",
    "numbers_game": "sampled",
    "trl_sft": "24 responses, loss",
    "trl_dpo": "pairs of steps, loss 0.",
}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example"])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def run(name: str) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


LONG = ("own_rows", "verifiers_taskset", "numbers_game")  # they train as much as a user would


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in SAYS]
)
def test_an_example_runs_in_an_empty_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(name)
    assert SAYS[name] in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} <= {"checkpoints", "rows.jsonl"}


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs the extra tasks")
def test_gsm_symbolic_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run("gsm_symbolic")
    assert "gsm-symbolic" in capsys.readouterr().out


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "sampled tokens" in printed and "gain, paired" in printed and "majority" in printed
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "error"
    ]


def test_examples_are_short_and_all_known_here() -> None:
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert set(files) == {*SAYS, "gsm_symbolic", "serve_client", "tree_credit"}  # run in test_serve and test_export
    for path in files.values():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40, path
