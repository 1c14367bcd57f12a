"""What proposes steps or tokens: an engine, or the server of a model."""

from __future__ import annotations

from typing import Any

from ..chat.remote import RemoteSteps, RemoteStudent
from ..config.sections import SearchConfig
from .engine_steps import EngineSteps
from .engine_tokens import EngineTokens


def policy_of(student: Any, settings: SearchConfig) -> EngineSteps | EngineTokens | RemoteSteps:
    """What proposes steps or tokens."""
    if settings.mode == "token":
        return EngineTokens(student, settings.temperature, settings.beam)
    return make_steps(student, settings.temperature)


def make_steps(student: Any, temperature: float) -> EngineSteps | RemoteSteps:
    """What proposes steps: the student's engine, or the server of its model."""
    steps = RemoteSteps if isinstance(student, RemoteStudent) else EngineSteps
    return steps(student, temperature)
