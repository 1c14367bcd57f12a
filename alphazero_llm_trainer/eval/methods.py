"""The methods of answering: each answers one problem within one token budget, and none ever sees a
gold answer.

A method is an async function of an `Attempt`; it returns the response (None: it has no answer) and
what ended it. The ones that repair (step-rejection, beam, mcts) share the settings of
`search.verify`. `eval` compares them, `serve` offers them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..answering.searches import answer_search
from ..errors import RequestError
from ..problems.registry import source_of
from ..tree.arena import WHOLE
from ..tree.extract import SHORT, endings
from ..types import Cost, Problem, Step, ids_of
from .attempt import Answered, Attempt, Chain, MethodContext, OverBudgetError

MethodResult = tuple[str | None, str]  # the response, and what ended it
Answering = Callable[[Attempt], Awaitable[MethodResult]]
MOST_SIMULATIONS = 1000  # the budget ends a search, not this
# What ended a question without an answer: its prompt doesn't fit; the server doesn't take it.
TOO_LONG, REFUSED = "too long", "refused"
BEAM_WIDTH = 2  # partial chains that beam keeps


async def run_method(
    name: str, context: MethodContext, problem: Problem, seed: int, budget: int
) -> Answered:
    """The answer of method `name` within `budget` tokens. Raises OverBudgetError when it spends
    more.
    """
    cost = Cost()
    try:
        async with context.policy.episode(problem):
            attempt = Attempt(context, problem, seed, budget)
            if attempt.longest <= 0:
                return Answered(None, TOO_LONG)
            cost = attempt.cost
            response, ended_by = await ANSWERING[name](attempt)
            ending = context.ending(problem, response)
    except RequestError as error:
        return Answered(None, REFUSED, cost, refusal=str(error))
    if attempt.tokens_left < 0:
        raise OverBudgetError(
            f"{name} sampled {cost.sampled_tokens}, scored {cost.scored_tokens} and was given "
            f"{cost.given_tokens} tokens on {problem.id} with a budget of {budget}: its figures "
            "can't be compared"
        )
    unjudged = context.verifier.checks and response in attempt.judge.unjudged
    why = None if response else attempt.why
    return Answered(response, ended_by, cost, unjudged, why, ending=ending)


# -- whole responses -------------------------------------------------------------------------------


async def greedy(attempt: Attempt) -> MethodResult:
    """One response of the likeliest tokens, whatever `search.verify.first_temperature` says."""
    attempt.verify = attempt.verify.with_values(first_temperature=0.0)
    chain = await attempt.draw(greedy=True, judged=False)
    return chain.text if attempt.usable(chain) else None, "finished"


async def draw_samples(attempt: Attempt, judged: bool) -> list[Chain]:
    """As many responses as the budget pays for, one after the other, or the attempt's `count` side
    by side; those that a limit cut before they stated an answer are left out.

    Nothing is drawn when less is left than the shortest whole response took. Without a judge a
    response may be drawn more than once: votes count how often.
    """
    if attempt.count is not None:
        return [
            chain
            for chain in await attempt.draw_many(attempt.count, judged)
            if attempt.usable(chain)
        ]
    chains: list[Chain] = []
    while attempt.room(judged=judged) >= attempt.shortest:
        chain = await attempt.draw(judged=judged, counts=not judged)
        if attempt.usable(chain):
            chains.append(chain)
    return chains


async def majority(attempt: Attempt) -> MethodResult:
    """The answer that most samples give (self-consistency, Wang et al. 2023); the first one on
    ties.
    """
    return vote_response(attempt, await draw_samples(attempt, judged=False)), "tokens"


def vote_response(attempt: Attempt, chains: Sequence[Chain]) -> str | None:
    """The first response that gives the commonest answer; where none gives any, the first one."""
    votes: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for chain in chains:
        stated = attempt.context.policy.state_answer(attempt.problem, chain.text)
        key = source_of(attempt.problem).vote_key(stated) if attempt.states(chain) else ""
        votes[key] += 1
        texts.setdefault(key, chain.text)
    return texts[commonest_key(votes)] if votes else None


def commonest_key(votes: Mapping[str, int]) -> str:
    """What most votes are for, the first one on ties; "" only where there is nothing else."""
    return max(votes, key=lambda key: (key != "", votes[key]))


async def best_of_n(attempt: Attempt) -> MethodResult:
    """The sample with the largest total by the verifier (Cobbe et al. 2021); the first one on
    ties.
    """
    return await best_or_last(attempt, await draw_samples(attempt, judged=True)), "tokens"


async def adaptive_best_of_n(attempt: Attempt) -> MethodResult:
    """A greedy response, then samples, until one passes the verifier; the best one where none
    does.
    """
    chains: list[Chain] = []
    while attempt.room() >= attempt.shortest:
        chain = await attempt.draw(greedy=not attempt.draws)
        if attempt.accepts(chain):
            return chain.text, "accepted"
        if attempt.usable(chain):
            chains.append(chain)
    return await best_or_last(attempt, chains), "tokens"


async def best_or_last(attempt: Attempt, chains: Sequence[Chain]) -> str | None:
    """The text of the best of `chains`; where there is none, of what the rest of the budget pays
    for.
    """
    best = attempt.best(chains)
    return await last_resort(attempt, ()) if best is None else best.text


async def last_resort(
    attempt: Attempt, steps: tuple[Step, ...], chains: Sequence[Chain] = ()
) -> str | None:
    """The best of `chains` and of one more that finishes `steps`, unjudged where the budget doesn't
    pay for that.
    """
    chains = list(chains)
    if attempt.room(steps, judged=False) > 0:
        last = await attempt.draw(steps, greedy=not attempt.draws, judged=False)
        if attempt.usable(last):
            # First, for ties: it goes on from a prefix that holds.
            chains.insert(0, await attempt.score_chain(last))
    best = attempt.best(chains)
    return None if best is None else best.text


# -- step by step ----------------------------------------------------------------------------------


async def step_rejection(attempt: Attempt) -> MethodResult:
    """Step by step; a rejected step is drawn again after the same prefix, and `patience` rejections
    go one step back.

    Going back rejects the step that is given up: where that was the last one its prefix had
    patience for, it goes as well. A response without a rejected step that is finished, or as deep
    as one may be, and not accepted all the same is taken back to before its weakest step. Where
    none is accepted, what is kept back finishes the prefix that holds.
    """
    chains: list[Chain] = []
    path: tuple[Step, ...] = ()
    rejections = [0]  # after the first i steps of the path
    fresh = True
    while attempt.room(path, attempt.kept) > 0:
        chain = await attempt.draw(path, greedy=fresh, line=True, kept=attempt.kept)
        if attempt.accepts(chain):
            return chain.text, "accepted"
        if attempt.usable(chain):
            chains.append(chain)
        passed = not attempt.rejects(chain, last=True) and attempt.enters(chain)
        over = chain.whole or len(chain.steps) >= attempt.settings.max_depth
        fresh = passed and not (over or chain.cut)
        if fresh:
            path = chain.steps
            rejections.append(0)
            continue
        if over and passed and chain.judged is not None:
            weakest = min(range(len(chain.steps)), key=chain.judged.steps.__getitem__)
            path, rejections = path[:weakest], rejections[: weakest + 1]
            continue
        rejections[-1] += 1
        while path and rejections[-1] >= attempt.verify.patience:
            path = path[:-1]
            rejections.pop()
            rejections[-1] += 1
    return await last_resort(attempt, path, chains), "tokens"


async def beam(attempt: Attempt) -> MethodResult:
    """Step-level beam search (AlphaMath, Chen et al. 2024): the best `BEAM_WIDTH` of the proposed
    steps go on.

    There are as many proposals a depth as the budget has chains (of `search.verify.reserve` tokens,
    and as many again where a model reads them). A finished response keeps its place in the beam by
    its total. A beam that the budget ends is finished by what is kept back.
    """
    whole_chain = max(attempt.verify.reserve, 1) * (2 if attempt.context.verifier.computes else 1)
    proposals = max(1, attempt.budget // whole_chain)
    width = min(BEAM_WIDTH, proposals)
    kept = 0 if proposals == 1 else attempt.kept
    beams = [Chain()]
    while live := [chain for chain in beams if not chain.whole]:
        longer = {ids_of(chain.steps): chain for chain in beams if chain.whole}
        for at, chain in enumerate(live):
            for turn in range(proposals // len(live) + (at < proposals % len(live))):
                if attempt.room(chain.steps, kept) > 0:
                    drawn = await attempt.draw(chain.steps, greedy=turn == 0, line=True, kept=kept)
                    new = ids_of(drawn.steps) not in longer and attempt.enters(drawn)
                    if not drawn.cut and drawn.judged is not None and new:
                        longer.setdefault(ids_of(drawn.steps), drawn)
        if all(chain.whole for chain in longer.values()):
            beams = [*longer.values(), *(live if not longer else ())]
            break
        beams = sorted(longer.values(), key=lambda chain: -chain.total)[:width]
    best = attempt.best([chain for chain in beams if chain.whole])
    if best is not None:
        return best.text, "finished"
    return await last_resort(attempt, beams[0].steps), "tokens"


async def mcts(attempt: Attempt) -> MethodResult:
    """The package's tree search: steps by `search.select` (null: PUCT under a verifier), rejected
    ones drawn again.
    """
    context, settings = attempt.context, attempt.settings
    simulations = MOST_SIMULATIONS if context.judged else settings.simulations
    if attempt.simulations is not None:
        simulations = attempt.simulations
    limits = settings.with_values(
        budget_tokens=attempt.budget, max_tokens=attempt.longest, simulations=simulations
    )
    search = answer_search(
        context.student,
        context.config.with_values(search=limits),
        context.perplexity,
        value=context.value,
        policy=context.policy if settings.mode == "step" else None,
        verifier=context.verifier if context.judged else None,
    )
    result = await search.run(attempt.problem, attempt.seed, attempt.tree, attempt.cost)
    tree, choice = result.tree, result.choice
    attempt.ends += {why: count for why, count in endings(tree).items() if why in SHORT}
    if choice is None:
        return None, result.ended_by
    attempt.choice = choice
    if context.judged and not tree.sure(tree.path(choice.node)):
        attempt.judge.unjudged.add(choice.response)
    said = context.policy.state_answer(attempt.problem, choice.response)
    stated = source_of(attempt.problem).final_answer(said, strict=True) is not None
    # The last chain of a search in which none passed is kept beside the tree.
    whole = stated or any(
        end.verdict in WHOLE for end in tree.finished() if end.node == choice.node
    )
    return (choice.response if whole else None), result.ended_by


ANSWERING: dict[str, Answering] = {
    "greedy": greedy,
    "majority": majority,
    "best-of-n": best_of_n,
    "adaptive-best-of-n": adaptive_best_of_n,
    "step-rejection": step_rejection,
    "beam": beam,
    "mcts": mcts,
}
