"""Uploading to the Hugging Face hub: what can be wrong shows before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError

from ..errors import CheckpointError, ConfigError

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
