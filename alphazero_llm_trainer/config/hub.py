"""Whether the hub can be asked. Without a network its libraries try again for a minute before they
say so.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Any

import httpx

SECONDS = 4.0  # that the hub has to answer
log = logging.getLogger(__name__)


def ask_hub_or_cache() -> None:
    """Have the hub's libraries read nothing but their cache, and fail at once, where the hub
    doesn't answer.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or hub_answers(constants.ENDPOINT):
        return
    log.warning(
        "%s doesn't answer within %g s: only what is in its cache is used",
        constants.ENDPOINT,
        SECONDS,
    )
    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = (
        "1"  # of libraries that are imported later, and processes that are started
    )
    datasets: Any = sys.modules.get("datasets")
    if datasets is not None:
        datasets.config.HF_HUB_OFFLINE = True


@functools.cache
def hub_answers(address: str) -> bool:
    """Whether an address answers anything within `SECONDS`, its name's look-up included; asked once
    a process.
    """
    answered = threading.Event()

    def ask() -> None:
        with suppress(httpx.HTTPError):
            httpx.head(address, timeout=SECONDS)
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)  # a name's look-up knows no time limit
    asking.start()
    asking.join(SECONDS)
    return answered.is_set()


def offline_because() -> str:
    """Why the hub isn't asked, for a sentence, or "" where it is."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        return ""
    if hub_answers.cache_info().currsize:
        return f"{constants.ENDPOINT} doesn't answer"
    return "HF_HUB_OFFLINE is set"
