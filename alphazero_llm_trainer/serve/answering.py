"""How one choice of a request is found: a plain sample, or a method of `eval` whose best so far counts when time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
from .requests import MCTS, SAMPLE, ChatBody, CompletionBody, Wanted
from .text import TextReader
from .wire import DEADLINE, Outcome, Token

PREFIXES = 32  # of a prompt that the engine is asked about at once
LINE = ("\n",)  # the one stop that ends a reasoning step, which the engine stops at by itself

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
        """One choice, whose text is told as it comes: piece by piece of a sample, at once of a search.

        `due` is when it has to be there, by the event loop's clock. Raises RequestError or ApiError for what can't be
        served, EngineError when the engine failed.
        """
        conversation = Conversation(self.student, wanted.prompt)
        if wanted.method.name == SAMPLE:
            body = wanted.body
            echoes = isinstance(body, CompletionBody) and body.echo
            if echoes:
                tell(wanted.question)
            outcome = await self.sampled(conversation, wanted, seed, due, tell)
            if echoes:
                outcome.text = wanted.question + outcome.text
                if outcome.tokens is not None:
                    outcome.tokens = [*await self.echoed(conversation, wanted), *outcome.tokens]
            return outcome
        outcome = await self.searched(conversation, wanted, Problem(name, wanted.question, "user"), seed, due)
        tell(outcome.text)
        return outcome

    # -- a plain sample ------------------------------------------------------------------------------------------------

    async def sampled(
        self, conversation: Conversation, wanted: Wanted, seed: int, due: float | None, tell: Tell
    ) -> Outcome:
        """One response, of `search.max_tokens` where the request names no number; OpenAI's default temperature is 1.

        It is told as it is drawn, and cut at stop strings and at the deadline.
        """
        engine, body, settings = conversation.engine, wanted.body, self.config.search
        most = settings.max_tokens if body.most_tokens is None else body.most_tokens
        request = GenerateRequest(
            conversation.prompt,
            max_new_tokens=min(most, engine.capabilities.max_context - len(conversation.prompt)),
            temperature=1.0 if body.temperature is None else body.temperature,
            seed=seed,
            max_steps=1 if body.stops == LINE and settings.step == "line" else None,
            top_k=body.alternatives or 0,
            top_p=body.top_p,
        )
        if most == 0:
            return Outcome("", "length", seed, engine.cost, "length", tokens=None if body.alternatives is None else [])
        reader = TextReader(conversation.decode, body.stops, engine.eos_ids)
        watched = body.stream or (bool(body.stops) and request.max_steps is None)
        woken = asyncio.Event()
        watch = Watch(woken.set if watched else None)
        drawing = asyncio.ensure_future(engine.generate([request], watch))
        drawing.add_done_callback(lambda _: woken.set())
        try:
            async with asyncio.timeout_at(due) as timer:
                while not drawing.done() and reader.stop is None:
                    await woken.wait()
                    woken.clear()
                    if watched and watch.samples:
                        reader.read(watch.samples[0].tokens)
                        tell(reader.delta())
        except TimeoutError:
            if not timer.expired():
                raise
        finally:
            engine.end()
            let_go(drawing)
        drawn = drawn_by(drawing, watch)
        reader.read(drawn.token_ids)
        reader.end()
        tell(reader.delta(final=True))
        ended_by = DEADLINE if not drawing.done() else "length" if drawn.finish == "length" else "stop"
        ended_by = ended_by if reader.stop is None else "stop"
        tops = drawn.top or [()] * len(drawn.logprobs)
        read = zip(reader.ids, reader.pieces, drawn.logprobs, tops, strict=False)
        tokens = [Token(*token) for token in read][: reader.kept()]
        if isinstance(body, CompletionBody) and drawn.finish == "eos" and reader.stop is None:
            tokens.append(Token(drawn.token_ids[-1], "", drawn.logprobs[-1], tops[-1]))  # as vLLM: clients count tokens
        return Outcome(
            text=reader.text,
            finish="stop" if ended_by == "stop" else "length",
            seed=seed,
            cost=engine.cost,
            ended_by=ended_by,
            token_ids=drawn.token_ids,
            logprobs=drawn.logprobs,
            stop=reader.stop,
            tokens=None if body.alternatives is None else tokens,
        )

    async def echoed(self, conversation: Conversation, wanted: Wanted) -> list[Token]:
        """The prompt's tokens with their log-probabilities (nats) and likeliest alternatives; none for the first one."""
        ids, engine = wanted.prompt, conversation.engine
        [logprobs] = await engine.score([(ids[:1], ids[1:])])
        likeliest = wanted.body.alternatives or 0
        tops: list[Any] = [()]
        for start in range(1, len(ids), PREFIXES):  # others get their turns between
            prefixes = [ids[:end] for end in range(start, min(start + PREFIXES, len(ids)))]
            more = [()] * len(prefixes)
            tops += await engine.engine.next_token_topk(prefixes, likeliest) if likeliest else more
        reader = TextReader(conversation.decode)
        reader.read(ids)
        reader.end()
        tokens = [Token(ids[0], reader.pieces[0], None)]
        for token, piece, logprob, top in zip(ids[1:], reader.pieces[1:], logprobs, tops[1:], strict=True):
            # Of one forward, so that a token which is the likeliest has exactly the likeliest one's number.
            tokens.append(Token(token, piece, dict(top).get(token, logprob), tuple(top)))
        return tokens

    # -- a search ------------------------------------------------------------------------------------------------------

    async def searched(
        self, conversation: Conversation, wanted: Wanted, problem: Problem, seed: int, due: float | None
    ) -> Outcome:
        """The method's response, or at the deadline the best of what the tree has by then."""
        serve, method, body, tree = self.config.serve, wanted.method, wanted.body, Tree()
        assert isinstance(body, ChatBody)
        budget = serve.budget_tokens if method.count is None else serve.max_budget_tokens
        budget = budget if body.budget_tokens is None else body.budget_tokens
        context = self.context(conversation, wanted, problem)
        attempt = Attempt(context, problem, seed, budget, count=method.count, simulations=body.simulations, tree=tree)
        found = await in_time(answer(method.name, attempt), due, conversation)
        response, ended_by = (None, DEADLINE) if found is None else found
        choice = attempt.choice
        if choice is None and found is None:
            choice = self.best(tree, problem, context.config)
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

    def best(self, tree: Tree, problem: Problem, config: Config) -> Choice | None:
        """The best finished response that a search has found so far."""
        rule = voting(config.search.choose, self.verifier is not None)
        decode: Callable[[Any], str] | None = self.student.decode if config.search.mode == "token" else None
        return choose(tree, rule, None, decode, reading_of(problem))


async def answer(name: str, attempt: Attempt) -> tuple[str | None, str]:
    """The answer of a method; a search that found none in its budget draws one response with what is left."""
    response, ended_by = await METHODS[name](attempt)
    if name == MCTS and response is None and attempt.choice is None and attempt.room(judged=False) > 0:
        response = (await attempt.draw(judged=False)).text
        ended_by = "tokens"
    return response, ended_by


def chosen(
    conversation: Conversation, wanted: Wanted, seed: int, tree: Tree, choice: Choice | None, ended_by: str
) -> Outcome:
    """A search's choice as a choice of the request; where nothing was finished, the best beginning there is."""
    engine = conversation.engine
    if choice is not None:
        text = choice.response
        ids, verdict = response_of(tree, choice)
        whole = verdict in WHOLE or extract(text, strict=True) is not None
    else:
        node, whole = most_visited(tree), False
        ids = max(tree.sequence(node)[0], engine.partial, key=len)
        text = conversation.decode([token for token in ids if token not in engine.eos_ids])
        choice = Choice(node, text, None, tree.N[node], 0.0, "no response was finished: the best beginning")
    found = [(at, stop) for stop in wanted.body.stops if (at := text.find(stop)) >= 0]
    at, stop = min(found, key=lambda one: one[0], default=(len(text), None))
    finish = "stop" if whole or stop is not None else "length"
    return Outcome(text[:at], finish, seed, engine.cost, ended_by, ids, stop=stop, tree=tree, choice=choice)


def response_of(tree: Tree, choice: Choice) -> tuple[tuple[int, ...], str | None]:
    """Token ids and verdict of a chosen response: a path, or a rollout that goes on from one."""
    ids, verdict = tree.sequence(choice.node)[0], tree.verdict[choice.node]
    if verdict is None:
        own = [rollout for rollout in tree.rollouts if rollout.node == choice.node]
        for rollout in own:
            if len(own) == 1 or choice.response.endswith(rollout.text):
                return ids + rollout.token_ids, rollout.verdict
    return ids, verdict


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
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to be told
        task.cancel()
