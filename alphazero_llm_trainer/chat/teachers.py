"""Builds a configuration's teachers and its terminal checker."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from ..config.load import Config
from ..config.sections import TeacherModel, TeacherTier
from ..engine.protocol import Teacher
from ..errors import ConfigError
from ..types import NOTHING, Opening
from .answer import CallError
from .client import ChatClient, Endpoint
from .ensemble import TeacherEnsemble
from .openai_teacher import ContinuingTeacher, OpenAITeacher, TerminalChecker

CHECKER = "terminal checker"  # the name of its ledger
FAILS = "fails:"  # what `check_teachers` says of a model without an answer
LEDGERS = "teacher_ledgers.jsonl"  # in a run's folder


def is_remote(config: Config) -> bool:
    """Whether the configuration has models asked over the network."""
    return config.teachers.tier not in ("none", "embedded") or config.teachers.terminal_checker


def open_remote(config: Config) -> Endpoint:
    """The endpoint, with the ledgers, that a tier's teachers and its terminal checker share; its
    key is the environment's.

    Raises:
        ConfigError: the tier is unknown, it has no address, or its key is missing.
    """
    name, tier, key = config.teachers.tier, _choose_tier(config), None
    if tier.base_url is None:
        raise ConfigError(
            f"teacher_tiers.{name}.base_url is null: name the address of an OpenAI-compatible "
            "server"
        )
    if tier.key_variable is not None:
        key = os.environ.get(tier.key_variable, "").strip()
        if not key:
            raise ConfigError(
                f"teachers.tier {name} needs a key: set {tier.key_variable} to the key of "
                f"{tier.base_url}, or choose another tier"
            )
        if not all("!" <= character <= "~" for character in key):  # no header holds anything else
            raise ConfigError(
                f"{tier.key_variable} has a space or another character that is in no key: "
                "copy the key again"
            )
    return Endpoint(tier.base_url, key, config.teachers)


def build_teachers(
    config: Config,
    scripted: Callable[[], Teacher],
    endpoint: Endpoint | None,
    opening: Opening = NOTHING,
) -> TeacherEnsemble | None:
    """The ensemble of `teachers.tier`, or None for tier "none".

    Args:
        config: the resolved configuration.
        scripted: makes the scripted teacher of tier "embedded".
        endpoint: what `open_remote` opened, where the tier is remote.
        opening: of the student's chats, for teachers that continue them.

    Raises:
        ConfigError: the tier is empty.
    """
    wanted = config.teachers
    if wanted.tier == "none":
        return None
    if wanted.tier == "embedded":
        return TeacherEnsemble([scripted()], wanted, config.seed)
    assert endpoint is not None
    tier = _choose_tier(config)
    models = tier.teachers
    if not models:
        raise ConfigError(
            f"teacher_tiers.{wanted.tier}.teachers is empty: name a model there or choose another "
            "tier"
        )
    clients = [ChatClient(endpoint, model) for model in models]
    teachers: list[Teacher] = [OpenAITeacher(client) for client in clients]
    if tier.prompt == "continue":
        if not wanted.right:
            raise ConfigError(
                "teachers.right is 0 and a teacher that continues is asked for no other step: "
                "give 1 or more"
            )
        stops = config.search.step == "line"
        teachers = [ContinuingTeacher(client, opening, stops) for client in clients]
        wanted = wanted.with_values(wrong=0)
    return TeacherEnsemble(teachers, wanted, config.seed, endpoint.ledgers)


async def check_teachers(config: Config) -> dict[str, str]:
    """What a call of each model of `teachers.tier` comes to: its seconds, or why it has no answer.

    Raises:
        ConfigError: the tier has no models that are called, or no key.
    """
    if config.teachers.tier in ("none", "embedded"):
        raise ConfigError(
            f"teachers.tier is {config.teachers.tier}, which calls nobody: "
            "name another by --set teachers.tier=free"
        )
    endpoint, tier = open_remote(config), _choose_tier(config)

    async def call(model: TeacherModel) -> str:
        begun = time.perf_counter()
        try:
            await ChatClient(endpoint, model).complete([{"role": "user", "content": "3 + 4 = ?"}])
        except CallError as error:
            return f"{FAILS} {error}"
        return f"answers in {time.perf_counter() - begun:.1f} s"

    models = [*tier.teachers, *([] if tier.terminal_checker is None else [tier.terminal_checker])]
    async with endpoint.session():
        said = await asyncio.gather(*map(call, models))
    return {model.model: words for model, words in zip(models, said, strict=True)}


def build_terminal_checker(config: Config, endpoint: Endpoint | None) -> TerminalChecker | None:
    """The terminal checker, or None where `teachers.terminal_checker` is off.

    Raises:
        ConfigError: the tier has no checker.
    """
    if not config.teachers.terminal_checker or endpoint is None:
        return None
    return TerminalChecker(ChatClient(endpoint, checker_model(config), CHECKER))


def checker_model(config: Config) -> TeacherModel:
    """The tier's terminal checker. Raises ConfigError where it has none."""
    model = _choose_tier(config).terminal_checker
    if model is None:
        raise ConfigError(
            f"teacher_tiers.{config.teachers.tier}.terminal_checker is missing: name a model there"
        )
    return model


def _choose_tier(config: Config) -> TeacherTier:
    tier = config.teacher_tiers.get(config.teachers.tier)
    if tier is None:
        names = ", ".join(config.teacher_tiers)
        raise ConfigError(
            f"teachers.tier is {config.teachers.tier!r}, which has no models: choose one of {names}"
        )
    return tier
