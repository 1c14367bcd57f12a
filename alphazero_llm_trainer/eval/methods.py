"""The methods of answering: each answers one problem within one token budget, and none ever sees a gold answer.

A method is an async function of an `Attempt`; it returns the response (None: it has no answer) and what ended it. The
ones that repair (early-abort, step-rejection, beam, dvts, mcts) share the settings of `search.verify`. `eval` compares
them, `serve` offers them; `answer_search` is the one search that answers questions, here and everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..engine.protocol import GenerateRequest, ValueFunction, Verifier
from ..mcts.driver import Search, SearchResult
from ..mcts.expansion import Evaluate
from ..mcts.steps import Advisor, StepPolicy
from ..mcts.tokens import TokenPolicy
from ..problems.calculator import exact_result
from ..problems.source import source_of
from ..rewards.terminal import finished_earns_one, make_evaluate
from ..rollouts import policy_of, reading_of
from ..types import Problem, Step, ids_of
from .attempt import Answered, Attempt, Chain, MethodContext, OverBudgetError, chain_of

if TYPE_CHECKING:
    from ..rewards.perplexity import Perplexity

Method = Callable[[Attempt], Awaitable[tuple[str | None, str]]]
MOST_SIMULATIONS = 1000  # the budget ends a search, not this


async def answered(name: str, sampler: MethodContext, problem: Problem, seed: int, budget: int) -> Answered:
    """The answer of method `name` within `budget` tokens. Raises OverBudgetError when it spends more."""
    attempt = Attempt(sampler, problem, seed, budget)
    if attempt.longest <= 0:
        return Answered(None, "too long")
    response, ended_by = await METHODS[name](attempt)
    cost = attempt.cost
    if attempt.left < 0:
        raise OverBudgetError(
            f"{name} sampled {cost.sampled_tokens} and scored {cost.scored_tokens} tokens on {problem.id} with a budget"
            f" of {budget}: its figures can't be compared"
        )
    return Answered(response, ended_by, cost, response in attempt.judge.unjudged)


# -- whole responses ---------------------------------------------------------------------------------------------------


async def greedy(attempt: Attempt) -> tuple[str | None, str]:
    """One response, at `search.verify.first_temperature` (0: the likeliest token each)."""
    return _response(attempt, await attempt.draw(greedy=True, judged=False)), "finished"


async def samples(attempt: Attempt, judged: bool, counts: bool) -> list[Chain]:
    """As many responses as the budget pays for, one after the other, or the attempt's `count` side by side; those that a
    limit cut before they stated an answer are left out.

    Nothing is drawn when less is left than the shortest whole response took. counts: one may be drawn more than once.
    """
    if attempt.count is not None:
        return [chain for chain in await attempt.draw_many(attempt.count, judged) if attempt.usable(chain)]
    found: list[Chain] = []
    while attempt.room(judged=judged) >= attempt.shortest:
        chain = await attempt.draw(judged=judged, counts=counts)
        if attempt.usable(chain):
            found.append(chain)
    return found


async def majority(attempt: Attempt) -> tuple[str | None, str]:
    """The answer that most samples give (self-consistency, Wang et al. 2023); the first one on ties."""
    return _voted(attempt, await samples(attempt, judged=False, counts=True), lambda chain: 1.0), "tokens"


async def weighted_majority(attempt: Attempt) -> tuple[str | None, str]:
    """The answer whose samples have the largest sum of the verifier's totals (Li et al. 2023, DiVeRSe)."""
    found = await samples(attempt, judged=True, counts=True)
    return (_voted(attempt, found, lambda chain: chain.total) or await _last_resort(attempt, ())), "tokens"


async def best_of_n(attempt: Attempt) -> tuple[str | None, str]:
    """The sample with the largest total by the verifier (Cobbe et al. 2021); the first one on ties."""
    best = attempt.best(await samples(attempt, judged=True, counts=False))
    return (await _last_resort(attempt, ()) if best is None else best.text), "tokens"


async def adaptive_best_of_n(attempt: Attempt) -> tuple[str | None, str]:
    """A greedy response, then samples, until one passes the verifier; the best one where none does."""
    found: list[Chain] = []
    while attempt.room() >= attempt.shortest:
        chain = await attempt.draw(greedy=not attempt.draws)
        if attempt.accepts(chain):
            return chain.text, "accepted"
        if attempt.usable(chain):
            found.append(chain)
    best = attempt.best(found)
    return (await _last_resort(attempt, ()) if best is None else best.text), "tokens"


# -- step by step ------------------------------------------------------------------------------------------------------


async def early_abort(attempt: Attempt) -> tuple[str | None, str]:
    """As adaptive-best-of-n, but a chain is abandoned at its first rejected step; the next one starts anew.

    No abandoned chain is drawn again, nor what begins like it: a step comes again as far as other chains go on from it.
    Where none passes, what is kept back finishes the longest chain that was not rejected.
    """
    found: list[Chain] = []
    longest: tuple[Step, ...] = ()
    # Down to the rejected step, at `search.temperature`.
    abandoned: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
    while attempt.room(kept=attempt.kept) > 0:
        chain = Chain()
        ids: tuple[int, ...] = ()
        logprobs: tuple[float, ...] = ()
        while attempt.room(chain.steps, attempt.kept) > 0:
            taken = tuple((dead[len(ids) :], rest[len(ids) :]) for dead, rest in abandoned if dead[: len(ids)] == ids)
            longer = await attempt.draw(chain.steps, greedy=not abandoned, line=True, kept=attempt.kept, taken=taken)
            ids, logprobs = ids + attempt.last[0], logprobs + attempt.last[1]
            if attempt.accepts(longer):
                return longer.text, "accepted"
            if attempt.usable(longer):
                found.append(longer)
            if longer.whole or longer.cut or attempt.rejects(longer, last=True):
                break
            chain = longer
        abandoned.append((ids, logprobs))
        longest = max(longest, chain.steps, key=len)
    return await _last_resort(attempt, longest, found), "tokens"


async def step_rejection(attempt: Attempt) -> tuple[str | None, str]:
    """Step by step; a rejected step is drawn again after the same prefix, and `patience` rejections go one step back.

    Going back rejects the step that is given up: where that was the last one its prefix had patience for, it goes as well.
    A finished response without a rejected step that is not accepted all the same is taken back to before its weakest
    step. Where none is accepted, what is kept back finishes the prefix that holds.
    """
    found: list[Chain] = []
    path: tuple[Step, ...] = ()
    rejections = [0]  # after the first i steps of the path
    fresh = True
    while attempt.room(path, attempt.kept) > 0:
        chain = await attempt.draw(path, greedy=fresh, line=True, kept=attempt.kept)
        if attempt.accepts(chain):
            return chain.text, "accepted"
        if attempt.usable(chain):
            found.append(chain)
        passed = not attempt.rejects(chain, last=True)
        fresh = passed and not (chain.whole or chain.cut) and len(chain.steps) < attempt.settings.max_depth
        if fresh:
            path = chain.steps
            rejections.append(0)
            continue
        if chain.whole and passed and chain.judged is not None:
            weakest = min(range(len(chain.steps)), key=chain.judged.steps.__getitem__)
            path, rejections = path[:weakest], rejections[: weakest + 1]
            continue
        rejections[-1] += 1
        while path and rejections[-1] >= attempt.verify.patience:
            path = path[:-1]
            rejections.pop()
            rejections[-1] += 1
    return await _last_resort(attempt, path, found), "tokens"


async def beam(attempt: Attempt) -> tuple[str | None, str]:
    """Step-level beam search (AlphaMath, Chen et al. 2024): the best `search.verify.beam_width` of the proposed steps go on.

    There are as many proposals a depth as the budget has chains (of `search.verify.reserve` tokens, and as many again where
    a model reads them). A finished response keeps its place in the beam by its total. A beam that the budget ends is
    finished by what is kept back.
    """
    chain = max(attempt.verify.reserve, 1) * (2 if attempt.sampler.verifier.computes else 1)
    proposals = max(1, attempt.budget // chain)
    width = min(attempt.verify.beam_width, proposals)
    beams = [Chain()]
    while live := [one for one in beams if not one.whole]:
        found = {ids_of(one.steps): one for one in beams if one.whole}
        kept = 0 if proposals == 1 else attempt.kept
        for at, one in enumerate(live):
            for turn in range(proposals // len(live) + (at < proposals % len(live))):
                if attempt.room(one.steps, kept) > 0:
                    longer = await attempt.draw(one.steps, greedy=turn == 0, line=True, kept=kept)
                    if not longer.cut and longer.judged is not None:
                        found.setdefault(ids_of(longer.steps), longer)
        if all(one.whole for one in found.values()):
            beams = [*found.values(), *(live if not found else ())]
            break
        beams = sorted(found.values(), key=lambda one: -one.total)[:width]
    best = attempt.best([one for one in beams if one.whole])
    if best is not None:
        return best.text, "finished"
    return await _last_resort(attempt, beams[0].steps), "tokens"


async def dvts(attempt: Attempt) -> tuple[str | None, str]:
    """Diverse verifier tree search (Beeching et al. 2024, "Scaling test-time compute with open models"): independent
    chains, each of which goes on with the best of `search.verify.beam_width` proposed steps; the best finished chain by
    its total.

    There are as many chains as the budget pays for, one after the other, each with another first step. Where all proposals
    are rejected a chain is given up; the first chain's first proposals are greedy ones, so that a small budget is worth a
    greedy answer.
    """
    found: list[Chain] = []
    path: tuple[Step, ...] = ()
    first = True
    while attempt.room(kept=attempt.kept) >= attempt.shortest:
        best: Chain | None = Chain()
        while best is not None and not best.whole and attempt.room(best.steps, attempt.kept) > 0:
            proposed: list[Chain] = []
            for turn in range(attempt.verify.beam_width):
                if attempt.room(best.steps, attempt.kept) <= 0:
                    break
                longer = await attempt.draw(best.steps, greedy=first and not turn, line=True, kept=attempt.kept)
                if not longer.cut and not attempt.rejects(longer, last=True):
                    proposed.append(longer)
            path = best.steps
            best = max(proposed, key=lambda chain: chain.total, default=None)
        first = False
        if best is not None and best.whole:
            found.append(best)
    return await _last_resort(attempt, path if not found else (), found), "tokens"


async def mcts(attempt: Attempt) -> tuple[str | None, str]:
    """The package's tree search: steps by `search.select` (null: PUCT under a verifier), rejected ones drawn again."""
    result = await tree_search(attempt)
    attempt.cost.add(result.cost)
    tree, choice = result.tree, result.choice
    if choice is None:
        return None, result.ended_by
    attempt.choice = choice
    if not tree.checked(tree.path(choice.node)):
        attempt.judge.unjudged.add(choice.response)
    # The last chain of a search in which none passed is kept beside the tree.
    ends = [tree.verdict[choice.node], *(rollout.verdict for rollout in tree.rollouts if rollout.node == choice.node)]
    stated = source_of(attempt.problem).final_answer(choice.response, strict=True) is not None
    whole = stated or any(end in ("answer", "ended") for end in ends)
    return (choice.response if whole else None), result.ended_by


async def tree_search(attempt: Attempt) -> SearchResult:
    """The search of `mcts`, with its tree."""
    sampler = attempt.sampler
    changes: dict[str, Any] = {"budget_tokens": attempt.budget, "budget_seconds": None, "max_tokens": attempt.longest}
    simulations = attempt.settings.simulations
    if sampler.judged:
        simulations = MOST_SIMULATIONS
        changes |= {"mode": "step", "rollout": "sample", "rollout_weight": None}
    changes["simulations"] = simulations if attempt.simulations is None else attempt.simulations
    config = sampler.config.model_copy(update={"search": attempt.settings.model_copy(update=changes)})
    policy = sampler.policy if config.search.mode == "step" else None
    verifier = sampler.verifier if sampler.judged else None
    search = answer_search(
        sampler.student, config, sampler.perplexity, value=sampler.value, policy=policy, verifier=verifier
    )
    return await search.run(attempt.problem, attempt.seed, attempt.tree)


def answer_search(
    student: Any,
    config: Config,
    perplexity: Perplexity | None = None,
    stop: Callable[[], bool] = lambda: False,
    value: ValueFunction | None = None,
    *,
    policy: StepPolicy | TokenPolicy | None = None,
    verifier: Verifier | None = None,
    advisor: Advisor | None = None,
) -> Search:
    """The search that answers questions: no gold.

    Under a verifier that judges each step; elsewhere a finished response earns the value network's V of it where there is
    one, else its PRE, and without either 1: then the vote counts responses and the most visited path is the likeliest one.
    `policy` proposes steps or tokens, None: the student's engine does.
    """
    settings = config.search
    evaluate: Evaluate | None = finished_earns_one
    grading = None
    if value is not None:
        evaluate = None
    elif perplexity is not None and config.rewards.pre_weight > 0:
        evaluate, grading = make_evaluate(config.rewards, perplexity, None), perplexity
    return Search(
        policy_of(student, settings) if policy is None else policy,
        evaluate,
        settings,
        advisor,
        stop=stop,
        value=value,
        grading=grading,
        verifier=verifier,
        reading=reading_of,
    )


# -- with a tool -------------------------------------------------------------------------------------------------------


async def calculator_tool(attempt: Attempt) -> tuple[str | None, str]:
    """As greedy, but after each `a op b =` that the model writes a calculator writes the result (Cobbe et al. 2021).

    Only the model's own tokens count.
    """
    student = attempt.sampler.student
    ids: tuple[int, ...] = ()
    while True:
        room = min(attempt.left, attempt.longest - len(ids))
        if room <= 0:
            ended = False
            break
        request = GenerateRequest(
            attempt.prompt + ids,
            max_new_tokens=room,
            temperature=attempt.verify.first_temperature,
            seed=attempt.seed,
            stop_ids=attempt.sampler.equals_ids,
        )
        [[one]] = await student.engine.generate([request])
        attempt.cost.sampled_tokens += len(one.token_ids)
        attempt.cost.cached_tokens += one.cached_tokens
        attempt.cost.calls += 1
        ids += one.token_ids
        ended = one.finish == "eos"
        if one.finish != "stop":
            break
        text = student.decode(ids)
        result = exact_result(text)
        if result is not None:
            # As the model spaces its own signs.
            spaced = text.rstrip(" ")[:-1].endswith(" ") and not text.endswith(" ")
            ids += tuple(student.encode(f" {result}" if spaced else result))
    cut = not (ended or student.engine.step_ends.whole(ids))
    chain = chain_of((Step(ids, (0.0,) * len(ids), student.decode(ids)),), ended, cut)
    return _response(attempt, chain), "finished"


METHODS: dict[str, Method] = {
    "greedy": greedy,
    "majority": majority,
    "best-of-n": best_of_n,
    "adaptive-best-of-n": adaptive_best_of_n,
    "weighted-majority": weighted_majority,
    "early-abort": early_abort,
    "step-rejection": step_rejection,
    "beam": beam,
    "dvts": dvts,
    "mcts": mcts,
    "calculator-tool": calculator_tool,
}


def _response(attempt: Attempt, chain: Chain) -> str | None:
    return chain.text if attempt.usable(chain) else None


def _voted(attempt: Attempt, chains: Sequence[Chain], weight: Callable[[Chain], float]) -> str | None:
    """The first response that gives the answer with the largest sum of weights; where none gives any, the first one."""
    votes: dict[str, float] = {}
    texts: dict[str, str] = {}
    for chain in chains:
        key = source_of(attempt.problem).vote_key(chain.text) if attempt.states(chain) else ""
        votes[key] = votes.get(key, 0.0) + weight(chain)
        texts.setdefault(key, chain.text)
    return texts[max(votes, key=lambda key: (key != "", votes[key]))] if votes else None


async def _last_resort(attempt: Attempt, steps: tuple[Step, ...], found: Sequence[Chain] = ()) -> str | None:
    """The best of `found` and of one more chain, unjudged where the budget doesn't pay for that, that finishes `steps`."""
    chains = list(found)
    if attempt.room(steps, judged=False) > 0:
        last = await attempt.draw(steps, greedy=not attempt.draws, judged=False)
        if attempt.usable(last):
            # First, for ties: it goes on from a prefix that holds.
            chains.insert(0, await attempt.scored(last))
    best = attempt.best(chains)
    return None if best is None else best.text
