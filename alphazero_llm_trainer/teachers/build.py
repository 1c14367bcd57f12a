"""Builds a configuration's teachers and its terminal checker, and keeps what they share in a run's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..config.sections import TeacherModel, TeacherTier
from ..engine.protocol import Teacher
from ..errors import ConfigError
from .budget import Books
from .cache import AnswerCache
from .client import ChatClient, open_endpoint
from .ensemble import TeacherEnsemble
from .openai_teacher import OpenAITeacher, TerminalChecker

CHECKER = "terminal checker"  # its name in the books
BOOKS, CACHE = "teacher_books.jsonl", "teacher_cache"  # in a run's folder


class Remote:
    """A tier's endpoint, and the books and the cache that its teachers and its terminal checker share.

    Raises:
        ConfigError: the tier is unknown, or its key is missing.
    """

    def __init__(self, config: Config) -> None:
        self.settings = config.teachers
        self.endpoint = open_endpoint(config.teachers.tier, _tier(config), config.teachers)
        self.books = Books(config.teachers.budget)
        named = config.teachers.cache not in ("run", "off")
        self.cache = AnswerCache(Path(config.teachers.cache) if named else None)
        self._sessions = 0

    def keep(self, folder: Path) -> list[dict[str, Any]]:
        """Keep books and cache in a run's folder; returns the notes of its earlier processes."""
        if self.settings.cache == "run":
            self.cache.folder = folder / CACHE
        return self.books.open(folder / BOOKS)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """The connections are closed when the last of those inside leaves."""
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions:
                await self.endpoint.close()


def is_remote(config: Config) -> bool:
    """Whether the configuration has models asked over the network."""
    return config.teachers.tier not in ("none", "embedded") or config.teachers.terminal_checker


def build_teachers(
    config: Config, scripted: Callable[[], Teacher], remote: Remote | None = None
) -> TeacherEnsemble | None:
    """The ensemble of `teachers.tier`, or None for tier "none".

    Args:
        config: the resolved configuration.
        scripted: makes the scripted teacher of tier "embedded".
        remote: what the terminal checker shares; made anew where it is None.

    Raises:
        ConfigError: the tier is unknown or empty, or its key is missing.
    """
    wanted = config.teachers
    if wanted.tier == "none":
        return None
    if wanted.tier == "embedded":
        return TeacherEnsemble([scripted()], wanted, config.seed)
    tier = _tier(config)
    if not tier.teachers:
        raise ConfigError(f"teacher_tiers.{wanted.tier}.teachers is empty: name a model there or choose another tier")
    remote = Remote(config) if remote is None else remote
    clients = [
        ChatClient(remote.endpoint, model, config.seed, books=remote.books, cache=remote.cache)
        for model in tier.teachers
    ]
    return TeacherEnsemble(
        [OpenAITeacher(client, wanted.max_tokens) for client in clients],
        wanted,
        config.seed,
        books=remote.books,
        strengths={model.model: model.strengths for model in tier.teachers},
    )


def build_terminal_checker(config: Config, remote: Remote | None = None) -> TerminalChecker | None:
    """The terminal checker, or None where `teachers.terminal_checker` is off.

    Raises:
        ConfigError: the tier has no checker, or its key is missing.
    """
    if not config.teachers.terminal_checker:
        return None
    model = checker_model(config)
    remote = Remote(config) if remote is None else remote
    client = ChatClient(remote.endpoint, model, config.seed, books=remote.books, cache=remote.cache, name=CHECKER)
    return TerminalChecker(client, config.teachers)


def checker_model(config: Config) -> TeacherModel:
    """The tier's terminal checker. Raises ConfigError where it has none."""
    model = _tier(config).terminal_checker
    if model is None:
        raise ConfigError(f"teacher_tiers.{config.teachers.tier}.terminal_checker is missing: name a model there")
    return model


def _tier(config: Config) -> TeacherTier:
    tier = config.teacher_tiers.get(config.teachers.tier)
    if tier is None:
        names = ", ".join(config.teacher_tiers)
        raise ConfigError(f"teachers.tier is {config.teachers.tier!r}, which has no models: choose one of {names}")
    return tier
