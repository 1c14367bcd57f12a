"""Answers of remote models by the hash of what was asked: one file each, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from ..files import read_object

log = logging.getLogger(__name__)


def request_key(base_url: str, request: dict[str, Any]) -> str:
    """The hash of an endpoint and a request (model, messages, parameters). Keys are headers, and not in it."""
    text = json.dumps([base_url, request], sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class AnswerCache:
    """A folder of answers; without a folder nothing is kept. An entry that can't be read is asked for again."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._warned = False

    def get(self, key: str) -> str | None:
        """The text that was answered, or None."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            entry = read_object(path)
            text = entry["text"]
            if entry["key"] != key or not isinstance(text, str):
                raise ValueError("another request's entry")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the cached answer %s can't be read (%s) and is asked for again", path, error)
            return None
        return text

    def put(self, key: str, model: str, text: str) -> None:
        """Keep an answer. A folder that can't be written costs the cache, never the answer."""
        if self.folder is None:
            return
        path = self._path(self.folder, key)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"key": key, "model": model, "text": text}), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("answers can't be cached in %s (%s): the run goes on without", self.folder, error.strerror)

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key[2:]}.json"
