"""The Hugging Face hub: uploading, of which what can be wrong shows before anything is trained, and a student's model card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError

from ..errors import CheckpointError, ConfigError

EMBEDDED_LICENCE = "apache-2.0"  # of the student that the package ships; another base keeps its own
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def check_hub(repository: str) -> None:
    """Raise ConfigError unless `repository` is an OWNER/NAME and there is a token to write with."""
    if REPOSITORY.fullmatch(repository) is None or "--" in repository or ".." in repository:
        raise ConfigError(f"--push-to-hub is {repository!r}: give OWNER/NAME, of letters, digits, '-', '_' and '.'")
    if get_token() is None:
        raise ConfigError("--push-to-hub needs a token: set HF_TOKEN to one that may write")


def upload(repository: str, folders: Mapping[str, Path]) -> str:
    """Upload folders (path in the repository -> folder) to a model repository, a private one where it is new.

    Returns its address. Raises CheckpointError where the hub refuses or can't be reached; the folders stay.
    """
    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=True, exist_ok=True)
        for place, folder in folders.items():
            hub.upload_folder(
                repo_id=repository, folder_path=folder, path_in_repo=place, commit_message=f"Upload {folder.name}"
            )
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{repository} can't be uploaded ({reason[:200]}): {', '.join(map(str, folders.values()))} are complete, use"
            " `hf upload` later"
        ) from error
    return str(address)


# -- the model card ----------------------------------------------------------------------------------------------------


def write_model_card(folder: Path, run: Mapping[str, Any], base: str, adapter: bool) -> None:
    """Write `folder`/README.md.

    Args:
        folder: the student's or the adapter's folder.
        run: what run.json says: configuration, results and cost.
        base: the weights that training began from: a folder or a hub id, "package" for the shipped student.
        adapter: the folder holds an adapter and not a whole model.
    """
    facts = ModelCardData(
        library_name="peft" if adapter else "transformers",
        tags=["alphazero-llm-trainer", "tree-search", run["method"]],
        license=EMBEDDED_LICENCE if base == "package" else None,
        base_model=None if base == "package" or Path(base).exists() else base,
    )
    ModelCard(f"---\n{facts.to_yaml()}\n---\n\n{body(run, base, adapter)}\n").save(folder / "README.md")


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
