"""The benchmarks' own machinery: the plain search is a right baseline, and what is counted is what was done."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path

import pytest
import torch
from support import EOS, library_logprobs, run, tiny_engine, tiny_llama

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.mcts.driver import Search
from alphazero_llm_trainer.mcts.waiting import together
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens
from alphazero_llm_trainer.types import Problem, RewardParts

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.search import Arm, Nested, PlainSearch, PlainSettings, Setting, Watched, nested, run_arm, same

MODEL = tiny_llama(3)
SETTINGS = PlainSettings(simulations=30, top_k=4, exploration=2.0, horizon=7, rollout="greedy")
PROMPTS = [(5, 6, 7), (9, 8, 21, 30, 4), (11, 50)]


def reward(ids: tuple[int, ...]) -> float:
    """Depends on the response alone; 17 levels whose sums are exact."""
    return hashlib.blake2b(bytes(ids), digest_size=1).digest()[0] % 17 / 16


def finished(ids: tuple[int, ...]) -> bool:
    return ids[-1] == EOS


def plain(prompt: tuple[int, ...], settings: PlainSettings = SETTINGS) -> Nested:
    return PlainSearch(MODEL, settings, finished, reward).run(prompt).nested()


def recursive(prompt: tuple[int, ...], settings: PlainSettings) -> Nested:
    """The same search written as a recursion over a dictionary of prefixes, by the library's full forward."""
    visits: dict[tuple[int, ...], int] = {(): 0}
    totals: dict[tuple[int, ...], float] = {(): 0.0}
    priors: dict[tuple[int, ...], list[tuple[int, float]]] = {}

    def after(ids: tuple[int, ...]) -> torch.Tensor:
        return library_logprobs(MODEL, prompt + ids)[-1].exp()

    def over(ids: tuple[int, ...]) -> bool:
        return len(ids) == settings.horizon or ids[-1:] == (EOS,)

    def rolled(ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids if over(ids) else rolled((*ids, int(after(ids).argmax())))

    def simulate(ids: tuple[int, ...]) -> float:
        if over(ids):
            earned = reward(ids)
        elif ids not in priors:
            best = after(ids).topk(settings.top_k)
            shares = (best.values / best.values.sum()).tolist()
            priors[ids] = list(zip(best.indices.tolist(), shares, strict=True))
            for token in best.indices.tolist():
                visits[*ids, token], totals[*ids, token] = 0, 0.0
            earned = reward(rolled(ids))
        else:
            scores = []
            for token, prior in priors[ids]:
                n, w = visits[*ids, token], totals[*ids, token]
                bonus = settings.exploration * prior * math.sqrt(visits[ids]) / (1 + n)
                scores.append((w / n if n else 0.0) + bonus)
            earned = simulate((*ids, priors[ids][scores.index(max(scores))][0]))
        visits[ids] += 1
        totals[ids] += earned
        return earned

    for _ in range(settings.simulations):
        simulate(())

    def written(ids: tuple[int, ...]) -> Nested:
        return {
            token: (visits[*ids, token], totals[*ids, token], written((*ids, token)))
            for token, _ in priors.get(ids, ())
        }

    return written(())


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_plain_search_equals_a_recursion(prompt: tuple[int, ...]) -> None:
    tree = plain(prompt)
    assert tree == recursive(prompt, SETTINGS)
    assert sum(visits for visits, _, _ in tree.values()) == SETTINGS.simulations - 1  # the first expands the root


class IdsAsText:
    """A student whose questions and texts are token ids in digits."""

    def __init__(self) -> None:
        self.engine = tiny_engine(MODEL)

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        return tuple(map(int, question.split()))

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return " ".join(map(str, token_ids))


def test_the_package_grows_the_plain_trees() -> None:
    overrides = {
        "mode": "token",
        "rollout": "greedy",
        "simulations": SETTINGS.simulations,
        "top_k": SETTINGS.top_k,
        "exploration": SETTINGS.exploration,
        "max_tokens": SETTINGS.horizon,
    }
    settings = load_config(overrides=[{"search": overrides}]).search

    async def evaluate(problem: Problem, steps: list, directions: list, verdict: str) -> RewardParts:
        return RewardParts(reward(tuple(token for step in steps for token in step.token_ids)))

    student = IdsAsText()
    search = Search(EngineTokens(student, 1.0, 3), evaluate, settings)  # type: ignore[arg-type]
    problems = [Problem(f"p{i}", student.decode(prompt), "ids") for i, prompt in enumerate(PROMPTS)]

    async def grow() -> list[Nested]:
        return [nested(result.tree) for result in await together(*(search.run(problem, 7) for problem in problems))]

    assert run(grow) == [plain(prompt) for prompt in PROMPTS]


def test_arms_agree_and_count_what_they_do() -> None:
    sizes = {"trees": 2, "simulations": 6, "prompt": 9, "horizon": 5, "keep": 2}
    slow, slow_trees = run_arm(Arm("plain", "plain", "greedy", **sizes))
    fast, fast_trees = run_arm(Arm("ours", "ours", "greedy", **sizes))
    assert same(fast_trees, slow_trees) == (2, 2)
    assert fast["simulations_in_all"] == slow["simulations_in_all"] == 12
    # Every simulation of the plain way computes at least its prompt twice: for its logits, and in its rollout.
    assert slow["tokens_per_simulation"] > 2 * 9
    assert fast["computed_tokens"] < slow["computed_tokens"] and fast["tokens_per_unique_token"] <= 1.0
    assert fast["rows_per_forward"] > slow["rows_per_forward"] == 1.0


def test_unique_tokens_are_distinct_prefixes() -> None:
    setting = Setting(Arm("ours", "ours", "greedy", trees=2, prompt=3))
    responses = [{(1, 2, 3), (1, 2, 4), (1, 2), (7,)}, {(1, 2, 3, 9), (5, 1), (5, 2)}]
    for problem, found in zip(setting.problems, responses, strict=True):
        setting.responses[problem.id] = found
    prefixes = [{ids[:end] for ids in found for end in range(1, len(ids) + 1)} for found in responses]
    assert setting.unique_tokens() == 2 * 3 + sum(map(len, prefixes))


def test_forwards_inside_generate_are_counted() -> None:
    watched = Watched(MODEL)
    search = PlainSearch(MODEL, PlainSettings(simulations=1, horizon=4, rollout="greedy"), lambda ids: False, reward)
    search.run((5, 6, 7))
    work = watched.stop()
    response = work.forwards - 1  # one forward for the root's children, then one a token
    assert 1 <= response <= 4 and work.rows == work.forwards
    assert work.tokens == 3 + 3 + (response - 1)
    search.run((5, 6, 7))
    assert watched.work.forwards == work.forwards
