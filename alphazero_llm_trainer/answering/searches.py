"""The search that answers questions: no gold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config.load import Config
from ..engine.protocol import StepPolicy, ValueFunction, Verifier
from ..live import StopAsked
from ..mcts.choose import Reading
from ..mcts.driver import Search
from ..mcts.expansion import Advisor, Evaluate, TokenPolicy
from ..policy.proposals import policy_of
from ..problems.registry import reading_of
from ..rewards.perplexity import Perplexity
from ..rewards.terminal import finished_earns_one, make_evaluate
from ..rewards.turns import TurnPolicy
from ..types import Problem


def answer_search(
    student: Any,
    config: Config,
    perplexity: Perplexity | None = None,
    stop: StopAsked = lambda: False,
    value: ValueFunction | None = None,
    *,
    policy: StepPolicy | TokenPolicy | None = None,
    verifier: Verifier | None = None,
    advisor: Advisor | None = None,
) -> Search:
    """The search that answers questions: no gold.

    Under a verifier that judges each step; elsewhere a finished response earns the value network's
    V of it where there is one, else its PRE, and without either 1: then the vote counts responses
    and the most visited path is the likeliest one. `policy` proposes steps or tokens, None: the
    student's engine does.
    """
    settings = config.search
    evaluate: Evaluate | None = finished_earns_one
    grading = None
    if value is not None:
        evaluate = None
    elif perplexity is not None and config.rewards.measures:
        evaluate, grading = make_evaluate(config.rewards, perplexity, None), perplexity
    reading: Callable[[Problem], Reading] = reading_of
    if isinstance(policy, TurnPolicy):
        evaluate = None if value is not None else policy.earn_one
        reading = policy.reading
    return Search(
        policy_of(student, settings) if policy is None else policy,
        evaluate,
        settings,
        advisor,
        stop=stop,
        value=value,
        grading=grading,
        verifier=verifier,
        reading=reading,
    )
