"""How a choice of a request is answered: a plain sample, or a method of `eval` whose best so far counts when time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..answers import extract
from ..config.load import Config
from ..engine.protocol import Generated, GenerateRequest, ValueFunction, Verifier, Watch
from ..eval.attempt import Attempt, MethodContext
from ..eval.methods import METHODS
from ..mcts.choose import Choice, choose, most_visited, voting
from ..mcts.metered import MeteredValue
from ..mcts.tree import WHOLE, Tree
from ..rewards.perplexity import Perplexity
from ..rollouts import reading_of
from ..types import Problem
from .conversation import Conversation, MeteredVerifier
from .requests import MCTS, MOST_BUDGET, SAMPLE, ChatBody, CompletionBody, Wanted
from .text import TextReader, cut
from .wire import DEADLINE, Outcome, Token

LEAST_LOGPROB = -9999.0  # as OpenAI writes a token that can't be: JSON has no infinity
PREFIXES = 32  # of a prompt that the engine is asked about at once

T = TypeVar("T")
Tell = Callable[[str], None]  # takes the text of a choice as it comes


@dataclass(slots=True)
class Answerer:
    """Answers prompts with one student; `verifier` judges searches (None: they vote), `value` guides those without one."""

    student: Any
    config: Config
    verifier: Verifier | None = None
    value: ValueFunction | None = None

    async def __call__(self, wanted: Wanted, seed: int, due: float | None, tell: Tell, name: str) -> Outcome:
        """A choice, whose text goes to `tell` as it comes: piece by piece of a sample, at once of a search.

        `due` is when it has to be there, by the event loop's clock. Raises RequestError for what can't be served,
        EngineError when the engine failed.
        """
        conversation = Conversation(self.student, wanted.prompt)
        if wanted.method.name != SAMPLE:
            outcome = await self.searched(conversation, wanted, Problem(name, wanted.question, "user"), seed, due)
            tell(outcome.text)
            return outcome
        echoes = getattr(wanted.body, "echo", False)
        before = wanted.question if echoes else ""
        tell(before)
        outcome = await self.sampled(conversation, wanted, seed, due, tell)
        outcome.text = before + outcome.text
        if echoes and outcome.tokens is not None:
            outcome.tokens = [*await self.echoed(conversation, wanted), *outcome.tokens]
        return outcome

    # -- a plain sample ------------------------------------------------------------------------------------------------

    async def sampled(
        self, conversation: Conversation, wanted: Wanted, seed: int, due: float | None, tell: Tell
    ) -> Outcome:
        """A response, of `search.max_tokens` where the request names no number; OpenAI's default temperature is 1.

        It goes to `tell` as it is drawn, and is cut at stop strings and at the deadline.
        """
        engine, body = conversation.engine, wanted.body
        most = self.config.search.max_tokens if body.most_tokens is None else body.most_tokens
        outcome = Outcome("", "length", seed, engine.cost, "length", tokens=None if body.alternatives is None else [])
        if most == 0:
            return outcome
        request = GenerateRequest(
            conversation.prompt,
            max_new_tokens=min(most, engine.capabilities.max_context - len(conversation.prompt)),
            temperature=1.0 if body.temperature is None else body.temperature,
            seed=seed,
            top_k=body.alternatives or 0,
            top_p=body.top_p,
        )
        reader = TextReader(conversation.decode, body.stops, engine.eos_ids)
        woken = asyncio.Event()
        watch = Watch(woken.set if body.stream or body.stops else None)
        drawing = asyncio.ensure_future(engine.generate([request], watch))
        drawing.add_done_callback(lambda _: woken.set())

        async def read() -> None:
            while not drawing.done() and reader.stop is None:
                await woken.wait()
                woken.clear()
                if watch.samples:
                    reader.read(watch.samples[0].tokens)
                    tell(reader.delta())

        try:
            await in_time(read(), due, conversation)
        finally:
            engine.end()
            let_go(drawing)
        drawn = drawn_by(drawing, watch)
        reader.read(drawn.token_ids)
        reader.end()
        tell(reader.delta(final=True))
        if reader.stop is not None or (drawing.done() and drawn.finish != "length"):
            outcome.finish = outcome.ended_by = "stop"
        elif not drawing.done():
            outcome.ended_by = DEADLINE
        outcome.text, outcome.stop = reader.text, reader.stop
        outcome.token_ids, outcome.logprobs = drawn.token_ids, drawn.logprobs
        if outcome.tokens is not None:
            tops = drawn.top or [()] * len(drawn.logprobs)
            read_tokens = zip(reader.pieces, drawn.logprobs, tops, strict=False)
            outcome.tokens = [self.token(*token) for token in read_tokens][: reader.kept()]
            if isinstance(body, CompletionBody) and drawn.finish == "eos" and reader.stop is None:
                # As vLLM: clients count tokens.
                outcome.tokens.append(self.token("", drawn.logprobs[-1], tops[-1]))
        return outcome

    async def echoed(self, conversation: Conversation, wanted: Wanted) -> list[Token]:
        """The prompt's tokens with their log-probabilities (nats) and likeliest alternatives; none for the first one."""
        ids, engine = wanted.prompt, conversation.engine
        [logprobs] = await engine.score([(ids[:1], ids[1:])])
        tops: list[Any] = [()] * len(logprobs)
        if wanted.body.alternatives:
            tops = []
            for start in range(1, len(ids), PREFIXES):  # others get their turns between
                prefixes = [ids[:end] for end in range(start, min(start + PREFIXES, len(ids)))]
                tops += await engine.engine.next_token_topk(prefixes, wanted.body.alternatives)
        reader = TextReader(conversation.decode)
        reader.read(ids)
        reader.end()
        tokens = [Token(reader.pieces[0], None)]
        for token, piece, logprob, top in zip(ids[1:], reader.pieces[1:], logprobs, tops, strict=True):
            # Of one forward, so that a token which is the likeliest has exactly the likeliest one's number.
            tokens.append(self.token(piece, dict(top).get(token, logprob), top))
        return tokens

    def token(self, text: str, logprob: float, top: Sequence[tuple[int, float]]) -> Token:
        others = [(self.student.decode([other]), max(value, LEAST_LOGPROB)) for other, value in top]
        return Token(text, max(logprob, LEAST_LOGPROB), others)

    # -- a search ------------------------------------------------------------------------------------------------------

    async def searched(
        self, conversation: Conversation, wanted: Wanted, problem: Problem, seed: int, due: float | None
    ) -> Outcome:
        """The method's response, or at the deadline the best of what the tree has by then."""
        serve, method, body, tree = self.config.serve, wanted.method, wanted.body, Tree()
        budget = serve.budget_tokens if method.count is None else MOST_BUDGET
        assert isinstance(body, ChatBody)
        context, budget = self.context(conversation, wanted, problem), body.budget_tokens or budget
        simulations = body.simulations
        attempt = Attempt(context, problem, seed, budget, count=method.count, simulations=simulations, tree=tree)
        answered = await in_time(answer(method.name, attempt), due, conversation)
        response, ended_by = answered or (None, DEADLINE)
        choice = attempt.choice
        if choice is None and response is None:
            rule = voting(context.settings.choose, context.judged)
            decode = self.student.decode if context.settings.mode == "token" else None
            choice = choose(tree, rule, None, decode, reading_of(problem))
        elif response is not None and (choice is None or choice.response != response):
            ends = [leaf for leaf in tree.leaves() if tree.response(leaf) == response]
            node = ends[0] if ends else most_visited(tree)
            reward = tree.reward[node] or 0.0
            choice = Choice(node, response, extract(response), max(tree.N[node], 1), reward, ended_by)
        return chosen(conversation, wanted, seed, tree, choice, ended_by)

    def context(self, conversation: Conversation, wanted: Wanted, problem: Problem) -> MethodContext:
        """What the request's method draws from and is judged by."""
        settings, body = self.config.search, wanted.body
        changes: dict[str, Any] = {
            "max_tokens": settings.max_tokens if body.most_tokens is None else body.most_tokens,
            "temperature": settings.temperature if body.temperature is None else body.temperature,
        }
        if self.verifier is not None:
            changes["mode"] = "step"
        config = self.config.model_copy(update={"search": settings.model_copy(update=changes)})
        student: Any = conversation
        if self.verifier is not None:
            return MethodContext(student, MeteredVerifier(self.verifier, problem, conversation), config)
        value = None if self.value is None else MeteredValue(self.value, conversation.engine.cost)
        own = Perplexity(student, settings.max_tokens, own=True) if config.rewards.use_student_model else None
        return MethodContext(student, None, config, own, value)


async def answer(name: str, attempt: Attempt) -> tuple[str | None, str]:
    """The answer of a method; a search that has none within its budget draws a response with what is left."""
    response, ended_by = await METHODS[name](attempt)
    if name == MCTS and response is None and attempt.choice is None and attempt.room(judged=False) > 0:
        return (await attempt.draw(judged=False)).text, "tokens"
    return response, ended_by


def chosen(
    conversation: Conversation, wanted: Wanted, seed: int, tree: Tree, choice: Choice | None, ended_by: str
) -> Outcome:
    """A search's choice as a choice of the request; where nothing was finished, the best beginning there is."""
    engine = conversation.engine
    if choice is None:
        node, whole = most_visited(tree), False
        ids = max(tree.sequence(node)[0], engine.partial, key=len)
        text = conversation.decode([token for token in ids if token not in engine.eos_ids])
        choice = Choice(node, text, None, tree.N[node], 0.0, "no response was finished: the best beginning")
    else:
        ids, verdict = tree.sequence(choice.node)[0], tree.verdict[choice.node]
        own = [rollout for rollout in tree.rollouts if rollout.node == choice.node]
        for rollout in own if verdict is None else ():  # a response may go on from a path
            if len(own) == 1 or choice.response.endswith(rollout.text):
                ids, verdict = ids + rollout.token_ids, rollout.verdict
                break
        whole = verdict in WHOLE or extract(choice.response, strict=True) is not None
    text, stop = cut(choice.response, wanted.body.stops)
    finish = "stop" if whole or stop is not None else "length"
    return Outcome(text, finish, seed, engine.cost, ended_by, ids, stop=stop, tree=tree, choice=choice)


# -- in time -----------------------------------------------------------------------------------------------------------


async def in_time(work: Awaitable[T], due: float | None, conversation: Conversation) -> T | None:
    """What `work` gives, or None where it has not ended by `due`: what is there by then counts, and it is let go."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=None if due is None else max(due - asyncio.get_running_loop().time(), 0.0))
        if task.done():
            return task.result()
        conversation.engine.end()
        return None
    finally:
        let_go(task)


def drawn_by(drawing: asyncio.Future[list[list[Generated]]], watch: Watch) -> Generated:
    """What was drawn, or what there is of it by now: a sample that is let go may still grow."""
    if drawing.done():
        return drawing.result()[0][0]
    if not watch.samples:
        return Generated((), (), "length")
    [sample] = watch.samples
    return Generated(tuple(sample.tokens), tuple(sample.logprobs), "length", tuple(sample.top) or None)


def let_go(task: asyncio.Future[Any]) -> None:
    """Cancel what has not ended, and don't wait: a cancellation takes a turn of the event loop for each task within a
    task, and on a busy server the deadline is long over then."""
    if not task.done():
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to hear of it
        task.cancel()
