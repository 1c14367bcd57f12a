"""The model card of a trained student: a README.md beside its weights, written from the run's own card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..files import write_whole

EMBEDDED_LICENCE = "apache-2.0"  # of the student that the package ships; another base keeps its own


def write_model_card(folder: Path, run: Mapping[str, Any], base: str, adapter: bool) -> None:
    """Write `folder`/README.md.

    Args:
        folder: the student's or the adapter's folder.
        run: what run.json says: configuration, results and cost.
        base: the weights that training began from: a folder or a hub id, "package" for the shipped student.
        adapter: the folder holds an adapter and not a whole model.
    """
    shipped = base == "package"
    front: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "tags": tags(run["method"])}
    if shipped:
        front["license"] = EMBEDDED_LICENCE
    elif not Path(base).exists():
        front["base_model"] = base
    header = yaml.safe_dump(front, sort_keys=False).strip()
    write_whole(folder / "README.md", f"---\n{header}\n---\n\n{body(run, base, adapter)}\n")


def tags(method: str) -> list[str]:
    """What a search on the hub finds the model by."""
    return ["alphazero-llm-trainer", "tree-search", method]


def body(run: Mapping[str, Any], base: str, adapter: bool) -> str:
    """The card's text: base, data, method, results with intervals, cost, licence."""
    config, problems = run["config"], run["config"]["problems"]
    levels = "" if problems["levels"] is None else f", levels {', '.join(map(str, problems['levels']))}"
    named = "the student that alphazero-llm-trainer ships" if base == "package" else f"`{base}`"
    licence = "Apache-2.0" if base == "package" else f"that of {named}"
    cost = run["search_cost"]
    lines = [
        f"# {run['student']}, trained by search",
        "",
        f"{'An adapter for' if adapter else 'A model trained from'} {named}, written by alphazero-llm-trainer.",
        "",
        f"- **Data:** {run['questions']:,} questions of `{problems['source']}`{levels} (train split), answered by the"
        f" student's own search; {run['demonstrations']:,} worked solutions were replayed.",
        f"- **Method:** `{run['method']}` over {run['rounds']} rounds, {config['train']['groups']} groups, seed"
        f" {run['seed']}. Kept: {run['kept']}.",
        f"- **Cost:** {cost['sampled_tokens']:,} tokens sampled and {cost['scored_tokens']:,} scored by the search.",
        f"- **Licence:** {licence}.",
        "",
        *results(run),
    ]
    return "\n".join(lines)


def results(run: Mapping[str, Any]) -> list[str]:
    """The table of held-out results, or the sentence that there are none."""
    before, after, gain = (run.get(name) for name in ("before", "after", "gain"))
    if not before or not after or before["accuracy"] is None or after["accuracy"] is None:
        return ["No held-out problems were evaluated."]
    rows = [
        f"| {name} | {found['accuracy']['value']:.3f} | [{found['accuracy']['low']:.3f}, {found['accuracy']['high']:.3f}] |"
        for name, found in (("before", before), ("after", after))
    ]
    if gain is not None:
        rows.append(f"| gain (paired) | {gain['value']:+.3f} | [{gain['low']:+.3f}, {gain['high']:+.3f}] |")
    return [
        f"Greedy accuracy on {after['problems']:,} held-out test problems, read once before and once after training:",
        "",
        "| | accuracy | 95% interval |",
        "|---|---|---|",
        *rows,
    ]
