"""The live view on a terminal, and the plain lines where there is none."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from alphazero_llm_trainer.live import Bar, last_tree

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
