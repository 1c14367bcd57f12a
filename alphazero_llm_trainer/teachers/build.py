"""Builds a configuration's teachers and its terminal checker."""

from __future__ import annotations

from collections.abc import Callable

from ..config.load import Config
from ..config.sections import TeacherModel, TeacherTier
from ..engine.protocol import Teacher
from ..errors import ConfigError
from .client import ChatClient, Endpoint, open_endpoint
from .ensemble import TeacherEnsemble
from .openai_teacher import OpenAITeacher, TerminalChecker

CHECKER = "terminal checker"  # its name in the books
BOOKS = "teacher_books.jsonl"  # in a run's folder


def is_remote(config: Config) -> bool:
    """Whether the configuration has models asked over the network."""
    return config.teachers.tier not in ("none", "embedded") or config.teachers.terminal_checker


def open_remote(config: Config) -> Endpoint:
    """The endpoint, and the books, that a tier's teachers and its terminal checker share.

    Raises:
        ConfigError: the tier is unknown, or its key is missing.
    """
    return open_endpoint(config.teachers.tier, _tier(config), config.teachers)


def build_teachers(
    config: Config, scripted: Callable[[], Teacher], endpoint: Endpoint | None = None
) -> TeacherEnsemble | None:
    """The ensemble of `teachers.tier`, or None for tier "none".

    Args:
        config: the resolved configuration.
        scripted: makes the scripted teacher of tier "embedded".
        endpoint: what the terminal checker shares; opened where it is None.

    Raises:
        ConfigError: the tier is unknown or empty, or its key is missing.
    """
    wanted = config.teachers
    if wanted.tier == "none":
        return None
    if wanted.tier == "embedded":
        return TeacherEnsemble([scripted()], wanted, config.seed)
    models = _tier(config).teachers
    if not models:
        raise ConfigError(f"teacher_tiers.{wanted.tier}.teachers is empty: name a model there or choose another tier")
    endpoint = open_remote(config) if endpoint is None else endpoint
    teachers = [OpenAITeacher(ChatClient(endpoint, model)) for model in models]
    strengths = {model.model: model.strengths for model in models}
    return TeacherEnsemble(teachers, wanted, config.seed, endpoint.books, strengths)


def build_terminal_checker(config: Config, endpoint: Endpoint | None = None) -> TerminalChecker | None:
    """The terminal checker, or None where `teachers.terminal_checker` is off.

    Raises:
        ConfigError: the tier has no checker, or its key is missing.
    """
    if not config.teachers.terminal_checker:
        return None
    model = checker_model(config)
    endpoint = open_remote(config) if endpoint is None else endpoint
    return TerminalChecker(ChatClient(endpoint, model, CHECKER))


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
