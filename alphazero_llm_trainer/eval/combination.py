"""A verifier fitted on validation problems: logistic regression over what the other verifiers say.

Two regressions over standardised features, with intercepts:

- of a response: mean, sum and least of its tokens' log-probabilities (nats), the least of its steps' sums, the
  calculator's verdict, and the logits of a network's total and of its lowest step;
- of a step: mean, sum and least of its tokens' log-probabilities, the calculator's verdict, the network's logit.

Nobody labels steps here: a response is taken to be as right as its weakest step (multiple-instance learning; Andrews et
al. 2002, mi-SVM's alternation). Each round fits the weakest step of every response to the response's outcome and finds
the weakest steps again, until they stay the same. No Monte-Carlo continuation is drawn for that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from ..engine.protocol import Judgement, Limits, Verifier
from ..errors import DataError, RequestError
from ..mcts.driver import derive_seed
from ..policy.engine_steps import EngineSteps
from ..policy.logistic import Logistic, fit_logistic
from ..problems.calculator import consistent
from ..types import Problem, Step, Task
from .metrics import area
from .verifiers import least, mean

RIDGE = 1e-3  # of the mean loss, on standardised weights
ROUNDS = 20
LOGPROB_FEATURES = ["mean log-probability", "log-probability", "least token log-probability"]


def fit_weakest(rows: Sequence[np.ndarray], labels: np.ndarray, first: int) -> Logistic:
    """A regression of steps from responses' labels `[N]`; `rows[i]` is `[S_i, F]`, S_i > 0.

    The weakest steps are at first those with the lowest feature number `first`.
    """
    weakest = [int(steps[:, first].argmin()) for steps in rows]
    for _ in range(ROUNDS):
        fitted = fit_logistic(
            np.stack([steps[at] for steps, at in zip(rows, weakest, strict=True)]), labels, ridge=RIDGE
        )
        again = [int(fitted(steps).argmin()) for steps in rows]
        if again == weakest:
            break
        weakest = again
    return fitted


class Combination:
    """The fitted verifier. `network` is the one part that computes tokens of its own, or None; `facts` go into reports."""

    name = "combination"

    def __init__(self, network: Verifier | None) -> None:
        self.network = network
        self.computes = network is not None and network.computes
        self.response: Logistic | None = None
        self.step: Logistic | None = None
        self.facts: dict[str, Any] = {}

    @property
    def scored_tokens(self) -> int:
        return 0 if self.network is None else self.network.scored_tokens

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The features' names, of a response and of a step."""
        response = [*LOGPROB_FEATURES, "least step log-probability", "calculator"]
        step = [*LOGPROB_FEATURES, "calculator"]
        if self.network is not None:
            response += [f"{self.network.name} total", f"{self.network.name} least step"]
            step.append(self.network.name)
        return response, step

    async def features(
        self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features of the response `[F]` and of its steps `[S, G]`."""
        tokens = [logprob for step in steps for logprob in step.logprobs]
        checked = [float(consistent(step.text)) for step in steps]
        response = [mean(tokens), math.fsum(tokens), least(tokens)]
        response += [min((math.fsum(step.logprobs) for step in steps), default=0.0), min(checked, default=1.0)]
        rows = [
            [mean(step.logprobs), math.fsum(step.logprobs), least(step.logprobs), right]
            for step, right in zip(steps, checked, strict=True)
        ]
        if self.network is not None:
            judged = await self.network(problem, prompt_ids, steps)
            response += [logit(judged.total), logit(min(judged.steps, default=judged.total))]
            rows = [[*row, logit(score)] for row, score in zip(rows, judged.steps, strict=True)]
        return np.array(response), np.array(rows).reshape(len(steps), len(self.names[1]))

    async def __call__(self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]) -> Judgement:
        assert self.response is not None and self.step is not None, "fit it first"
        response, rows = await self.features(problem, prompt_ids, steps)
        scores = tuple(float(score) for score in self.step(rows)) if len(rows) else ()
        return Judgement(scores, float(self.response(response[None])[0]))


def logit(p: float) -> float:
    """log(p / (1 - p)), p kept a millionth away from 0 and 1."""
    p = min(max(p, 1e-6), 1 - 1e-6)
    return math.log(p / (1 - p))


async def fit_combination(
    combination: Combination,
    policy: EngineSteps,
    tasks: Sequence[Task],
    right: Callable[[str, Task], Awaitable[bool]],
    *,
    samples: int,
    limits: Limits,
    seed: int,
) -> None:
    """Fit on sampled responses to validation tasks; a fifth of the questions is held out for the reported AUC first.

    Raises DataError where the responses are all right or all wrong: there is nothing to tell apart.
    """

    async def one(task: Task) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        draw = derive_seed(seed, "combination", task.problem.id)
        try:
            found, _ = await policy.continuations(task.problem, [], samples, draw, limits)
        except RequestError:
            return []
        whole: dict[tuple[tuple[int, ...], ...], list[tuple[Step, ...]]] = {}
        for continuation in found:
            if continuation.ended and continuation.steps:
                whole.setdefault(tuple(step.token_ids for step in continuation.steps), []).append(continuation.steps)
        examples = []
        for same in whole.values():
            outcome = await right("".join(step.text for step in same[0]), task)
            # A response that was sampled twice counts twice: then the probabilities are those of samples.
            features = await combination.features(task.problem, policy.prompt_ids(task.problem), same[0])
            examples += [(*features, outcome)] * len(same)
        return examples

    by_task = await asyncio.gather(*(one(task) for task in tasks))
    held = [example for i, examples in enumerate(by_task) if i % 5 == 4 for example in examples]
    fitted = [example for i, examples in enumerate(by_task) if i % 5 != 4 for example in examples]
    for part in (held, fitted):
        if len({label for _, _, label in part}) < 2:
            raise DataError(
                f"--verifier combination has {len(part)} responses to {len(tasks)} validation problems, all of one"
                " outcome: raise eval.fit_problems, or name another verifier"
            )
    _fit(combination, fitted)
    labels = np.array([label for _, _, label in held], dtype=float)
    rows = np.stack([response for response, _, _ in held])
    assert combination.response is not None and combination.step is not None
    totals = combination.response(rows)
    weakest = np.array([combination.step(steps).min() for _, steps, _ in held])
    aucs = {name: area(rows[:, i], labels) for i, name in enumerate(combination.names[0])}
    aucs |= {"combination": area(totals, labels), "weakest step by the combination": area(weakest, labels)}
    _fit(combination, [*fitted, *held])
    combination.facts = {
        "problems": len(tasks),
        "responses": len(fitted) + len(held),
        "right": float(np.mean([label for _, _, label in [*fitted, *held]])),
        "held_out_auc": aucs,
        "response": _shown(combination.names[0], combination.response),
        "step": _shown(combination.names[1], combination.step),
    }


def _fit(combination: Combination, examples: Sequence[tuple[np.ndarray, np.ndarray, bool]]) -> None:
    labels = np.array([label for _, _, label in examples], dtype=float)
    combination.response = fit_logistic(np.stack([response for response, _, _ in examples]), labels, ridge=RIDGE)
    combination.step = fit_weakest([steps for _, steps, _ in examples], labels, first=1)


def _shown(names: list[str], fitted: Logistic) -> dict[str, float]:
    """Weights of the standardised features, and the intercept."""
    return {**dict(zip(names, fitted.weights.tolist(), strict=True)), "intercept": fitted.bias}
