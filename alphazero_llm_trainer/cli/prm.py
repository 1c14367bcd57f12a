"""The `prm` command: train a process reward model from trees, spoiled demonstrations or files of step labels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..live import Progress
from .base import EXIT_STOPPED
from .judges import JudgeCommand, add_judge


def add_prm(commands: Any) -> None:
    add_judge(
        commands,
        "prm",
        run_prm,
        help="train a process reward model: is this step right?",
        data="journals or folders of runs and samples; JSONL files of step pairs (prompt, prefix, chosen, rejected) or"
        " of PRM800K's records",
        kinds=("implicit", "classifier", "bradley-terry", "all"),
        kind="all: keep the best",
    )


def run_prm(args: argparse.Namespace, config: Config, progress: Progress) -> int:
    """Train, print the held-out table and write the folder."""
    from ..eval.results import read_json
    from ..policy.prm_verifier import FOLDER
    from ..report.judges import prm_text
    from ..training import prm_data, prm_run

    settings = config.train.prm
    command = JudgeCommand(args, config, settings, FOLDER, progress)
    paths = command.paths()
    if paths is None:
        return EXIT_STOPPED
    sets = prm_data.read_sets(paths, command.student, settings)
    parts = command.split(sets, "judged steps")
    parts[0].extend(prm_data.spoiled_demonstrations(command.student, config, {judged.text for judged in sets}))
    command.begin(parts, "choose")

    def watch(kind: str, line: dict[str, float]) -> None:
        command.record(
            {"kind": kind, **line},
            f"{kind} step {line['step']:.0f}: loss {line['loss']:.4f}; held out: pairs {line['held_out_pairs']:.4f},"
            f" label loss {line['held_out_loss']:.4f}",
        )

    trained = prm_run.train_prm(command.student, config, parts, command.out, watch, progress)
    facts = command.facts() | {"cost": sampled_cost(command.journal)}
    prm_run.save_prm(command.out, trained, command.student, config, facts)
    card = read_json(command.out / FOLDER.card)
    command.show(card, prm_text(card), "prm.json, metrics.jsonl and report.html")
    return 0


def sampled_cost(journal: Path) -> dict[str, int]:
    """What the trees of the command's own journal cost; nothing where the data came from elsewhere."""
    from ..mcts.journal import read

    total = dict.fromkeys(("sampled_tokens", "prompt_tokens", "calls"), 0)
    for record in read(journal) if journal.is_file() else ():
        for name in total:
            total[name] += int(record.get("cost", {}).get(name, 0))
    return total
