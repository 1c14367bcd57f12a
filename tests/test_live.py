"""The live view on a terminal, and the plain lines where there is none."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alphazero_llm_trainer.live import Bar, Progress, last_tree
from alphazero_llm_trainer.train.progress import UpdateProgress

ARGUMENTS = [
    "train",
    "--student",
    "embedded",
    "--num-examples",
    "16",
    "--eval-size",
    "8",
    "--set",
    "train.validation_size=0",
]
ARGUMENTS += ["--set", "train.questions_per_round=8", "--set", "rewards.use_student_model=false"]


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_shows_rate_notes_and_lines() -> None:
    out = Terminal()
    bar = Bar(10, 4, "tree", out)
    bar.describe("cell")
    bar.at(5)
    bar.note("last tree", last_tree("k/1", 12, 24, 3, 8, "iterations"))
    bar.note("tokens", "1")
    bar.note("tokens", "2 [bold]")  # text, not markup
    bar.write("a line that stays")
    bar.at(10)
    bar.close()
    text = plain(out.getvalue())
    assert "10/10" in text and "trees/s" in text and "cell" in text
    assert "last tree: k/1: 12 nodes, 24 simulations, 3 of 8 responses right, iterations" in text
    assert "tokens: 2 [bold]" in text
    assert "a line that stays" in text
    assert text.rstrip().endswith("tokens: 2 [bold]")  # the newest note of a name takes its place


def test_updates_have_a_line_with_their_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    said: list[str] = []
    progress = Progress(tell=said.append)
    progress.start(32)
    updates = UpdateProgress(progress, 2)
    clock[0] += 8.0
    progress.at(16)
    said.clear()
    updates.begin(0, 4)
    assert progress.doing == "round 1/2, update 0/4" and said == []
    for seconds in (3.0, 3.0, 6.0, 0.5):
        clock[0] += seconds
        updates.step()
    pace = "16/32 questions, 1.1 questions/s, ETA 14 s"
    assert said[0] == f"round 1/2, update 2/4 (3.0 s/update, ETA 6 s): {pace}"
    assert said[1].startswith("round 1/2, update 3/4 (4.0 s/update, ETA 4 s): ") and len(said) == 2
    updates.step()  # a step of the schedule without rows
    assert progress.doing == "" and len(said) == 2
    updates.begin(1, 0)
    assert progress.doing == ""
    updates.begin(1, 3)
    clock[0] += 0.25
    updates.step()
    assert progress.doing == "round 2/2, update 1/3 (4.0 updates/s, ETA 0 s)"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def trained(folder: Path, terminal: bool) -> str:
    """What a short training run writes to standard error."""
    command = [
        sys.executable,
        "-c",
        "import sys; from alphazero_llm_trainer.cli.main import main; sys.exit(main())",
        *ARGUMENTS,
    ]
    command += ["--checkpoint-dir", str(folder)]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs if terminal else subprocess.PIPE, env=environment
    )
    os.close(theirs)
    if not terminal:
        text = child.communicate(timeout=120)[1].decode()
    else:
        found = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the child closed its end
                break
            if not data:
                break
            found += data
        text = found.decode()
    os.close(ours)
    assert child.wait(timeout=120) == 0
    return text


def test_training_shows_its_last_tree_on_a_terminal(tmp_path: Path) -> None:
    text = plain(trained(tmp_path, terminal=True))
    assert "16/16" in text and "questions/s" in text
    assert re.search(r"last tree: \d/embedded/train/\S+: \d+ nodes, \d+ simulations, \d+ of \d+ responses right", text)
    assert re.search(r"sampled: [\d,]+ tokens, [\d,]+ a second", text)
    assert re.search(r"round: 2/2: reward", text)


def test_training_writes_plain_lines_elsewhere(tmp_path: Path) -> None:
    text = trained(tmp_path, terminal=False)
    assert "\x1b" not in text and "last tree" not in text
    assert re.search(r"round 2/2: reward .* questions/s, ETA 0 s", text)
