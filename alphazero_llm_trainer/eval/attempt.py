"""One method at one problem with one budget: what it draws, what that costs, and what is left.

A budget is sampled plus scored tokens. What a draw may take is known before it is made, so that no
method can get over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..config.load import Config
from ..engine.protocol import Judgement, Limits, ValueFunction, Verifier
from ..grading.answers import is_final
from ..mcts.choose import Choice
from ..mcts.metered import MeteredVerifier
from ..mcts.seeds import derive_seed
from ..mcts.steps import end_verdict
from ..problems.registry import source_of
from ..rewards.turns import Ending, TurnPolicy, steps_for_tasks
from ..tree.arena import REJECTED, ROOT, Tree
from ..types import (
    Continuation,
    Cost,
    Logprobs,
    Problem,
    RewardParts,
    Step,
    Steps,
    Task,
    TokenIds,
    ids_of,
    text_of,
)
from .named_verifiers import NoVerifier

if TYPE_CHECKING:
    from ..policy.student import Student
    from ..rewards.perplexity import Perplexity


class OverBudgetError(RuntimeError):
    """A method spent more than its budget: a bug of the method, whose figures can't be compared."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a method answered (None: nothing that is an answer) and what that took.

    `ended_by` is "finished" (the method did what it does), "accepted" (a response passed the
    verifier), "tokens" (the budget ended it), "too long" (the prompt doesn't fit into the context)
    or "refused" (for the reason `refusal`). `why` is what most responses were cut by or were in
    place of an answer, a key of `tree.extract.SHORT`, None where there is one. `unjudged`: a
    verifier that checks steps was asked, and found none in the response that it
    could check, or one that it could not. `ending` is of the response's episode, in a world.
    """

    response: str | None
    ended_by: str
    cost: Cost = field(default_factory=Cost)
    unjudged: bool = False
    why: str | None = None
    refusal: str | None = None
    ending: Ending | None = None

    @property
    def tokens(self) -> int:
        return self.cost.computed


@dataclass(frozen=True, slots=True)
class Chain:
    """A response or the beginning of one. `whole`: it ended by itself; `cut`: a limit ended it
    inside a step.
    """

    steps: tuple[Step, ...] = ()
    whole: bool = False
    cut: bool = False
    judged: Judgement | None = None

    @property
    def text(self) -> str:
        return text_of(self.steps)

    @property
    def tokens(self) -> int:
        return sum(len(step.token_ids) for step in self.steps)

    @property
    def total(self) -> float:
        """The verifier's judgement of the whole; 0 where there is none."""
        return 0.0 if self.judged is None else self.judged.total

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """How responses are compared: by their totals. The lowest where there is none."""
        return (False, False, False, 0.0) if self.judged is None else self.judged.rank


class MethodContext:
    """What all methods draw from: the student's steps, the verifier, and the limits of a response.

    Without a verifier `mcts` searches by `value`, or by PRE (`perplexity`), or by votes; see
    `answering.searches.answer_search`. Worlds tell the rewards of the `tasks`, for the report.
    """

    def __init__(
        self,
        student: Student,
        verifier: Verifier | None,
        config: Config,
        perplexity: Perplexity | None = None,
        value: ValueFunction | None = None,
        tasks: Sequence[Task] = (),
    ) -> None:
        self.student, self.config, self.perplexity, self.value = student, config, perplexity, value
        self.judged = verifier is not None
        self.verifier: Verifier = NoVerifier() if verifier is None else verifier
        self.settings = config.search
        self.policy = steps_for_tasks(student, config.search, tasks)

    def ending(self, problem: Problem, response: str | None) -> Ending | None:
        """How the episode of a response ended; None where there was none, or it didn't end."""
        turns = self.policy
        return turns.ending(problem, response) if isinstance(turns, TurnPolicy) else None


class Attempt:
    """One problem, one budget: draws continuations, has them judged, and adds up what that costs.

    `seed` and the number of the draw decide each draw. `longest` is the most tokens that a response
    may have. `kept` is what methods that repair keep back, so that they can finish some response
    where none passed (`search.verify.reserve`, at most half of the budget).

    `count` is a number of samples for the methods that draw whole responses, `simulations` one for
    `mcts`; None leaves both to the budget. What is drawn is added to the `tree` where there is one:
    then `candidates` are the usable chains in it, `nodes` their last nodes by their texts. `choice`
    is what `mcts` chose.
    """

    def __init__(
        self,
        context: MethodContext,
        problem: Problem,
        seed: int,
        budget: int,
        *,
        count: int | None = None,
        simulations: int | None = None,
        tree: Tree | None = None,
    ) -> None:
        self.context, self.problem, self.seed, self.budget = context, problem, seed, budget
        self.count, self.simulations, self.tree = count, simulations, tree
        self.choice: Choice | None = None
        self.candidates: list[Chain] = []
        self.nodes: dict[str, int] = {}
        self.settings, self.verify = context.settings, context.settings.verify
        self.prompt = context.policy.prompt_ids(problem)
        self.cost, self.draws = Cost(), 0
        self.ends: Counter[str] = Counter()  # why responses have no answer: keys of SHORT
        # By the steps before them, and whether they are one line: what was drawn, with
        # log-probabilities at `search.temperature`; see `draw`.
        self.drawn: dict[tuple[TokenIds, bool], dict[TokenIds, Logprobs]] = {}
        self.shortest = (
            1  # tokens of the shortest whole response: another draw has at least as many
        )
        self.judge = MeteredVerifier(context.verifier, problem, self.prompt, self.cost)
        self.kept = min(self.verify.reserve, budget // 2)
        room = context.student.engine.capabilities.max_context - len(self.prompt)
        self.longest = min(self.settings.max_tokens, room)

    @property
    def why(self) -> str | None:
        """Why most responses have no answer; None where that isn't known."""
        return max(self.ends, key=self.ends.__getitem__, default=None)

    def limits(self, lines: int, tokens: int, used: int = 0) -> Limits:
        """Limits of a draw after `used` tokens of a response, with the one that binds."""
        bound = "length" if self.longest == self.settings.max_tokens else "context"
        return Limits(lines, tokens, "budget" if tokens < self.longest - used else bound)

    @property
    def tokens_left(self) -> int:
        """Tokens of the budget that are not spent."""
        return self.budget - self.cost.computed

    def room(self, steps: Steps = (), kept: int = 0, judged: bool = True) -> int:
        """Tokens that may be drawn after `steps`: the budget beside `kept` pays for their judgement
        too.
        """
        used = sum(len(step.token_ids) for step in steps)
        allowed = self.tokens_left - kept
        if judged and self.context.verifier.computes:
            allowed = (allowed - self.judge.step_price(steps)) // 2
        if len(steps) >= self.settings.max_depth:
            return 0
        return max(0, min(allowed, self.longest - used))

    async def draw(
        self,
        steps: Steps = (),
        *,
        greedy: bool = False,
        line: bool = False,
        kept: int = 0,
        judged: bool = True,
        counts: bool = False,
    ) -> Chain:
        """`steps` and what comes next: to the response's end, or one `line`. There has to be
        `room`.

        greedy: at `search.verify.first_temperature` instead of `search.temperature`, where nothing
        was drawn after these steps; judged: by the verifier. What was drawn after them is not drawn
        again (`search.verify.repeat`), but where it `counts` how often it is.
        """
        seed = derive_seed(self.seed, self.draws)
        self.draws += 1
        lines = 1 if line else self.settings.max_depth - len(steps)
        limits = self.limits(lines, self.room(steps, kept, judged), len(ids_of(steps)))
        drawn = self.drawn.setdefault((ids_of(steps), line), {})
        known = tuple(drawn.items())
        [continuation], spent = await self.context.policy.continuations(
            self.problem,
            steps,
            1,
            seed,
            limits,
            self.verify.first_temperature if greedy and not known else None,
            None if counts or self.verify.repeat else known,
        )
        self.cost.add(spent)
        ids, logprobs = continuation.drawn
        drawn[ids] = logprobs
        chain = chain_of((*steps, *continuation.steps), continuation.ended, continuation.cut)
        if not line or chain.cut:
            self.count_end(chain, continuation, limits, steps)
        if chain.whole and not steps:
            self.shortest = chain.tokens if self.shortest == 1 else min(self.shortest, chain.tokens)
        return await self.drawn_chain(chain, judged)

    async def draw_many(self, count: int, judged: bool = True) -> list[Chain]:
        """`count` whole responses side by side, which share their prompt; what is `tokens_left` is
        shared out among them.
        """
        seed = derive_seed(self.seed, self.draws)
        self.draws += count
        allowed = self.tokens_left // count
        if judged and self.context.verifier.computes:
            allowed = (self.tokens_left - self.judge.step_price(())) // (2 * count)
        if min(allowed, self.longest) <= 0:
            return []
        limits = self.limits(self.settings.max_depth, min(allowed, self.longest))
        drawn, spent = await self.context.policy.continuations(
            self.problem, (), count, seed, limits
        )
        self.cost.add(spent)
        chains = [chain_of(response.steps, response.ended, response.cut) for response in drawn]
        for chain, response in zip(chains, drawn, strict=True):
            self.count_end(chain, response, limits)
        return [await self.drawn_chain(chain, judged) for chain in chains]

    def count_end(
        self, chain: Chain, drawn: Continuation, limits: Limits, prefix: Steps = ()
    ) -> None:
        """Count why a chain has no answer, where it has none."""
        if not self.usable(chain):
            self.ends[end_verdict(drawn, limits, prefix)] += 1

    async def drawn_chain(self, chain: Chain, judged: bool) -> Chain:
        """A new chain, judged or not, which is in the tree from now on."""
        if judged:
            chain = await self.score_chain(chain)
        if self.tree is not None:
            self.record(chain, self.tree)
        return chain

    def record(self, chain: Chain, tree: Tree) -> None:
        """Add a chain to the tree: a visit of its total, terminal where it ended or its last step
        was rejected.
        """
        node = ROOT
        for at, step in enumerate(chain.steps):
            node = tree.attach(node, step)
            if chain.judged is not None and at not in chain.judged.unchecked:
                tree.prm[node] = chain.judged.steps[at]
            elif chain.judged is not None and not self.context.verifier.checks:
                tree.V[node] = chain.judged.steps[at]
            tree.unread[node] = chain.judged is not None and at in chain.judged.unread
        # Counted samples are ranked; none is repaired.
        rejected = (
            self.count is None and chain.judged is not None and self.rejects(chain, last=True)
        )
        total = 0.0 if rejected else chain.total
        if node != ROOT and (chain.whole or rejected):
            verdict = REJECTED if rejected else "answer" if self.states(chain) else "ended"
            tree.samples[node] += chain.whole
            tree.finish(node, verdict, RewardParts(total=total))
        tree.backup(node, total)
        tree.simulated(node)
        if self.usable(chain):
            self.candidates.append(chain)
            self.nodes.setdefault(chain.text, node)

    async def score_chain(self, chain: Chain) -> Chain:
        """The chain with the verifier's judgement, where the budget pays for it."""
        if self.judge.step_price(chain.steps) > self.tokens_left:
            return chain
        return Chain(chain.steps, chain.whole, chain.cut, await self.judge(chain.steps))

    def rejects(self, chain: Chain, last: bool = False) -> bool:
        """Whether the verifier rejects a step of `chain` (the `last` one alone)."""
        return chain.judged is None or chain.judged.rejects(self.verify.reject_below, last)

    def enters(self, chain: Chain) -> bool:
        """Whether the last step of `chain` leads to a state that as few steps never reached
        before.
        """
        return chain.judged is None or self.judge.enter(chain.judged, len(chain.steps))

    def states(self, chain: Chain) -> bool:
        """Whether an answer is found in `chain`; in one that a limit cut, an explicit one alone."""
        stated = self.context.policy.state_answer(self.problem, chain.text)
        return source_of(self.problem).final_answer(stated, strict=not chain.whole) is not None

    def usable(self, chain: Chain) -> bool:
        """Whether `chain` can be the response: it is whole, or states an answer all the same."""
        return chain.whole or self.states(chain)

    def accepts(self, chain: Chain) -> bool:
        """Whether `chain` is a whole response with an answer that the verifier passes."""
        if chain.judged is None or not chain.judged.sure:
            return False
        passes = not self.rejects(chain) and chain.total >= self.verify.accept_above
        return chain.whole and passes and self.states(chain)

    def best(self, chains: Sequence[Chain]) -> Chain | None:
        """The one that ranks highest, those with an answer first; the first one on ties, None of
        nothing.
        """
        return max(chains, key=lambda chain: (self.states(chain), chain.rank), default=None)


def chain_of(steps: tuple[Step, ...], ended: bool, cut: bool) -> Chain:
    """What a draw made of a response: the policy closed it itself (`ended`), or a limit did inside
    a step (`cut`).
    """
    final = bool(steps) and steps[-1].final and is_final(steps[-1].text, text_of(steps[:-1]))
    return Chain(steps, whole=ended or (final and not cut), cut=cut)
