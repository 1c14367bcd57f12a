"""The Hugging Face hub: uploading, of which what can be wrong shows before anything is trained, and
a student's model card.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import validate_repo_id

from .. import __version__
from ..errors import CheckpointError, ConfigError, reason_of
from ..eval.metrics import Interval
from ..policy.folders import VALUE
from ..types import Facts

TAGS = ("alphazero-llm-trainer", "tree-search", "mcts", "llm", "reinforcement-learning")
NAMED_SOURCES = ("gsm8k", "math", "hotpotqa")  # sources that others know by this name
CARRIED = f"""
The folder carries a value (`{VALUE}/`): a layer over the student's own last hidden states, which
says how likely a state of a response is to end right. Given this folder, `search`, `eval` and
`serve` of alphazero-llm-trainer use it without being told. Other programs read the student alone.
"""


def check_hub(repository: str) -> None:
    """Raise ConfigError unless `repository` is an OWNER/NAME and there is a token to write with."""
    try:
        validate_repo_id(repository)
        repository.index("/")
    except ValueError as error:
        raise ConfigError(f"--push-to-hub is {repository!r}: give OWNER/NAME ({error})") from error
    if get_token() is None:
        raise ConfigError("--push-to-hub needs a token: set HF_TOKEN to one that may write")


def upload_folders(repository: str, folders: Mapping[str, Path]) -> str:
    """Upload folders (path in the repository -> folder) to a model repository, a private one where
    it is new.

    Returns its address. Raises CheckpointError where the hub refuses or can't be reached; the
    folders stay.
    """
    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=True, exist_ok=True)
        for place, folder in folders.items():
            hub.upload_folder(
                repo_id=repository,
                folder_path=folder,
                path_in_repo=place,
                commit_message=f"Upload {folder.name}",
            )
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{repository} can't be uploaded ({reason_of(error)}): "
            f"{', '.join(map(str, folders.values()))} are complete, use `hf upload` later"
        ) from error
    return str(address)


def write_model_card(folder: Path, run: Facts, base: str, adapter: bool) -> None:
    """Write `folder`/README.md: base, data, method, results with intervals, cost, licence.

    Args:
        folder: the student's or the adapter's folder.
        run: what run.json says.
        base: the weights that training began from: a folder or a hub id, "package" for the shipped
            student.
        adapter: the folder holds an adapter and not a whole model.
    """
    ours = base == "package"
    named = "the student that alphazero-llm-trainer ships" if ours else f"`{base}`"
    source, name = run["config"]["problems"]["source"], run["student"]
    accuracy = (run.get("after") or {}).get("accuracy")
    measured = None if accuracy is None else [
        EvalResult(
            task_type="text-generation", dataset_type=source, dataset_name=source,
            dataset_split="test", metric_type="accuracy", metric_value=accuracy["value"],
        )
    ]  # fmt: skip
    facts = ModelCardData(
        model_name=name,
        eval_results=measured,
        library_name="peft" if adapter else "transformers",
        tags=[*TAGS, run["method"], *([] if source not in NAMED_SOURCES else [source])],
        pipeline_tag="text-generation",
        license="apache-2.0" if ours else None,  # another base keeps its own
        base_model=None if ours or Path(base).exists() else base,
    )
    text = f"""
# {run["student"]}, trained by search

{"An adapter for" if adapter else "A model trained from"} {named}, by
alphazero-llm-trainer {__version__}: `{run["method"]}` over {run["rounds"]} rounds on
{run["questions"]:,} questions of `{run["config"]["problems"]["source"]}`, seed {run["seed"]}.
Kept: {run["kept"]}.
Held-out test problems: {results_text(run)}.
Licence: {"Apache-2.0" if ours else f"that of {named}"}.
"""
    if (folder / VALUE).is_dir():
        text += CARRIED
    ModelCard(f"---\n{facts.to_yaml()}\n---\n{text}").save(folder / "README.md")


def results_text(run: Facts) -> str:
    """Greedy accuracy before and after with 95% intervals, the mean reward where there are no gold
    answers, or that there is none.
    """
    measured, gain = ("accuracy", "gain") if run["gain"] else ("reward", "reward_gain")
    if run.get(gain) is None:
        return "none were evaluated"
    shares = {name: run[name][measured] for name in ("before", "after")}
    shares["paired gain"] = run[gain]
    shown = [f"{name} {Interval(**share)}" for name, share in shares.items()]
    what = "greedy accuracy" if measured == "accuracy" else "mean reward of greedy answers"
    failed = run["after"]["failed_rewards"] if measured == "reward" else 0
    left_out = f" ({failed:,} rewards failed)" if failed else ""
    return f"{what} on {run['after']['problems']:,}{left_out}: {', '.join(shown)}"
