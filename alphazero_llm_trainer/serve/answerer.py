"""How a choice of a request is answered: a plain sample, or a method of `eval` whose best so far
counts when time is over.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from ..chat.remote import RemoteStudent
from ..config.load import Config
from ..engine.protocol import Generated, GenerateRequest, ValueFunction, Verifier, Watch
from ..eval.attempt import Attempt, MethodContext
from ..eval.methods import ANSWERING, MethodResult, commonest_key
from ..grading.answers import extract, normalize
from ..mcts.choose import Choice, choose, most_visited, voting
from ..mcts.seeds import derive_seed
from ..mcts.waiting import gather_all
from ..policy.engine_steps import drawing_cost
from ..policy.tool_chat import ToolChat
from ..problems.registry import open_source, reading_of
from ..rewards.perplexity import Perplexity
from ..tree.arena import Tree
from ..types import Cost, Problem, TokenIds, TokenPairs, token_text
from .requests import MCTS, MOST_BUDGET, SAMPLE, ChatBody, CompletionBody, WantedAnswer
from .text_reader import TextReader, cut_at_stop
from .wire import DEADLINE, AnswerOutcome, WireToken

LEAST_LOGPROB = -9999.0  # as OpenAI writes a token that can't be: JSON has no infinity
LEAST_BUDGET = 1000  # tokens of a search where serve.budget_tokens is null
GROWTH = 0.3  # seconds between two looks at a tree

# Takes the text of a choice as it comes, with its tokens where they were asked for.
Tell = Callable[[str, Sequence[WireToken]], None]


class Conversation:
    """A student whose one prompt is a request's, whatever its last question was."""

    def __init__(self, student: Any, prompt: TokenIds) -> None:
        self.student, self.prompt = student, prompt

    def prompt_ids(self, question: str) -> TokenIds:
        return self.prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.student, name)


@dataclass(slots=True)
class Answerer:
    """Answers prompts with one student; `verifier` judges searches (None: they vote), `value`
    guides those without one.
    """

    student: Any
    config: Config
    verifier: Verifier | None = None
    value: ValueFunction | None = None

    @property
    def budget(self) -> int:
        """Tokens of a search that names no budget."""
        named = self.config.serve.budget_tokens
        return max(LEAST_BUDGET, self.config.answer_budget) if named is None else named

    @property
    def example(self) -> str:
        """A question of its own source, or none where that would have to be fetched."""
        source = open_source(self.config)
        return source.load("validation", 1)[0].problem.question if source.endless else ""

    async def __call__(
        self,
        wanted: WantedAnswer,
        seed: int,
        due: float | None,
        tell: Tell,
        name: str,
        grown: Callable[[Tree], None] = lambda tree: None,
    ) -> AnswerOutcome:
        """A choice, whose text goes to `tell` as it comes: piece by piece of a sample, at once of a
        search, whose tree goes to `grown` while it grows.

        `due` is when it has to be there, by the event loop's clock. Raises RequestError for what
        can't be served, EngineError when the engine failed.
        """
        if wanted.tools is not None:
            outcome = await self.take_turn(wanted, wanted.tools, seed, due)
            tell(outcome.text, outcome.tokens or ())
            return outcome
        if wanted.method.name != SAMPLE:
            problem = Problem(name, wanted.question, "user")
            outcome = await self.answer_by_search(wanted, problem, seed, due, grown)
            tell(outcome.text, ())
            return outcome
        return await self.sample_answer(wanted, seed, due, tell)

    # -- a turn with tools -------------------------------------------------------------------------

    async def take_turn(
        self, wanted: WantedAnswer, tools: ToolChat, seed: int, due: float | None
    ) -> AnswerOutcome:
        """A turn that may call tools: a sample, or by a vote the first of those that make the same
        calls, or state the same answer, most often.
        """
        body, count = wanted.body, wanted.method.count
        assert isinstance(body, ChatBody)
        if count is not None:
            search = self.config.search
            most = (body.budget_tokens or MOST_BUDGET) // count
            limits = {"max_completion_tokens": min(body.most_tokens or search.max_tokens, most)}
            usual = {"temperature": search.temperature} if body.temperature is None else {}
            wanted = replace(wanted, body=body.model_copy(update=limits | usual))
        turns = await gather_all(
            *(
                self.sample_answer(
                    wanted, derive_seed(seed, at) if at else seed, due, lambda text, tokens: None
                )
                for at in range(count or 1)
            )
        )
        keys = [read_turn(turn, tools, body.parallel_tool_calls) for turn in turns]
        turn = turns[keys.index(commonest_key(Counter(keys)))]
        for other in turns:
            if other is not turn:
                turn.cost.add(other.cost)
        return turn

    # -- a plain sample ----------------------------------------------------------------------------

    async def sample_answer(
        self, wanted: WantedAnswer, seed: int, due: float | None, tell: Tell
    ) -> AnswerOutcome:
        """A response, of `search.max_tokens` where the request names no number; OpenAI's default
        temperature is 1.

        It goes to `tell` as it is drawn, and is cut at stop strings and at the deadline.
        """
        engine, body, prompt = self.student.engine, wanted.body, wanted.prompt
        most = self.config.search.max_tokens if body.most_tokens is None else body.most_tokens
        outcome = AnswerOutcome(
            "", "length", seed, Cost(), "length", tokens=None if body.alternatives is None else []
        )
        if most == 0:
            return outcome
        request = GenerateRequest(
            prompt,
            max_new_tokens=min(most, engine.capabilities.max_context - len(prompt)),
            temperature=1.0 if body.temperature is None else body.temperature,
            seed=seed,
            top_k=body.alternatives or 0,
            top_p=body.top_p,
        )
        goes_on = isinstance(body, CompletionBody) or body.continue_final_message
        before = prompt if goes_on else ()
        decode = self.student.decode if wanted.tools is None else wanted.tools.decode
        reader = TextReader(decode, body.stops, engine.eos_ids, before)
        woken = asyncio.Event()
        watch = Watch(woken.set if body.stream or body.stops else None)
        drawing = asyncio.ensure_future(engine.generate([request], watch))
        drawing.add_done_callback(lambda _: woken.set())
        told = 0  # tokens
        try:
            async with asyncio.timeout_at(due):
                while not drawing.done() and reader.stop is None:
                    await woken.wait()
                    woken.clear()
                    if watch.samples:
                        told = self.tell_more(reader, drawn_by_now(watch), told, tell, body)
        except TimeoutError:
            outcome.ended_by = DEADLINE
        finally:
            drawing.cancel()
        drawn = drawing.result()[0][0] if drawing.done() else drawn_by_now(watch)
        self.tell_more(reader, drawn, told, tell, body, final=True)
        if reader.stop is not None or (drawing.done() and drawn.finish != "length"):
            outcome.finish = outcome.ended_by = "stop"
        outcome.text, outcome.stop = reader.text, reader.stop
        outcome.cost = drawing_cost(prompt, [drawn])
        outcome.token_ids, outcome.logprobs = drawn.token_ids, drawn.logprobs
        if outcome.tokens is not None:
            outcome.tokens = self.read_tokens(reader, drawn, 0, reader.count_kept())
            if isinstance(body, CompletionBody) and drawn.finish == "eos" and reader.stop is None:
                # As vLLM: clients count tokens.
                outcome.tokens.append(self.token("", drawn.logprobs[-1], (drawn.top or [()])[-1]))
        return outcome

    def tell_more(
        self,
        reader: TextReader,
        drawn: Generated,
        told: int,
        tell: Tell,
        body: ChatBody | CompletionBody,
        final: bool = False,
    ) -> int:
        """Tell what is new of a sample, of which `told` tokens are told; returns how many are now.

        A chat's tokens go with their text, where their log-probabilities were asked for.
        """
        reader.read(drawn.token_ids)
        if final:
            reader.end()
        text, tokens = reader.delta(final), []
        if isinstance(body, ChatBody) and body.alternatives is not None:
            tokens = self.read_tokens(reader, drawn, told, reader.count_shown())
        tell(text, tokens)
        return told + len(tokens)

    def read_tokens(
        self, reader: TextReader, drawn: Generated, first: int, end: int
    ) -> list[WireToken]:
        """The tokens from number `first` to `end` of a sample."""
        tops = drawn.top or [()] * len(drawn.logprobs)
        return [
            self.token(reader.pieces[at], drawn.logprobs[at], tops[at]) for at in range(first, end)
        ]

    def token(self, text: str, logprob: float, top: TokenPairs) -> WireToken:
        others = [
            (token_text(self.student.decode, other), max(value, LEAST_LOGPROB))
            for other, value in top
        ]
        return WireToken(text, max(logprob, LEAST_LOGPROB), others)

    # -- a search ----------------------------------------------------------------------------------

    async def answer_by_search(
        self,
        wanted: WantedAnswer,
        problem: Problem,
        seed: int,
        due: float | None,
        grown: Callable[[Tree], None],
    ) -> AnswerOutcome:
        """The method's response, or at the deadline the best of what the tree has by then."""
        method, body, tree = wanted.method, wanted.body, Tree()
        assert isinstance(body, ChatBody)
        context = self.context(wanted)
        budget = body.budget_tokens
        if budget is None:
            budget = self.budget if method.count is None else MOST_BUDGET
        simulations = body.simulations
        attempt = Attempt(
            context, problem, seed, budget, count=method.count, simulations=simulations, tree=tree
        )
        response, ended_by = None, DEADLINE
        watching = asyncio.ensure_future(watch_growth(tree, grown))
        try:
            async with asyncio.timeout_at(due):
                response, ended_by = await answer_within(method.name, attempt)
        except TimeoutError:
            best = attempt.best(attempt.candidates)
            response = None if best is None else best.text
        finally:
            watching.cancel()
        choice = attempt.choice
        if response in attempt.nodes:
            node = attempt.nodes[response]
            reward = tree.reward[node] or 0.0
            choice = Choice(
                node, response, extract(response), max(tree.N[node], 1), reward, ended_by
            )
        elif choice is None:
            rule = voting(context.settings.choose, context.judged)
            decode = self.student.decode if context.settings.mode == "token" else None
            choice = choose(tree, rule, None, decode, reading_of(problem))
        if choice is None:
            node = most_visited(tree)
            text = tree.response(node)
            choice = Choice(
                node, text, None, tree.N[node], 0.0, "no response was finished: the best beginning"
            )
        text, stop = cut_at_stop(choice.response, body.stops)
        whole = (
            response is not None
            or stop is not None
            or extract(choice.response, strict=True) is not None
        )
        finish, ids = "stop" if whole else "length", chosen_ids(tree, choice)
        return AnswerOutcome(
            text, finish, seed, attempt.cost, ended_by, ids, stop=stop, tree=tree, choice=choice
        )

    def context(self, wanted: WantedAnswer) -> MethodContext:
        """What the request's method draws from and is judged by."""
        asked: dict[str, Any] = {
            "max_tokens": wanted.body.most_tokens,
            "temperature": wanted.body.temperature,
        }
        changes = {name: value for name, value in asked.items() if value is not None}
        config = self.config.with_values(search=changes)
        remote = isinstance(self.student, RemoteStudent)
        student: Any = (
            replace(self.student, messages=wanted.messages)
            if remote
            else Conversation(self.student, wanted.prompt)
        )
        own = config.rewards.use_student_model and self.verifier is None and not remote
        perplexity = Perplexity(student, config.search.max_tokens, own=True) if own else None
        return MethodContext(student, self.verifier, config, perplexity, self.value)


def read_turn(turn: AnswerOutcome, tools: ToolChat, several: bool) -> str:
    """Read the calls of a turn out of its text; `several`: not the first alone. Returns what turns
    that say the same share, "" where a limit cut it. A turn with a call that can't be read, or of a
    tool that isn't there, stays text.
    """
    said, known = tools.read(turn.text), {tool["function"]["name"] for tool in tools.tools}
    try:
        calls = [
            {"name": name, "arguments": json.dumps(dict(arguments), allow_nan=False)}
            for name, arguments, error in said.calls
            if error is None and name in known
        ]
    except ValueError:  # a number without a place in JSON
        calls = []
    if calls and len(calls) == len(said.calls):
        turn.text, turn.finish = said.text, turn.finish.replace("stop", "tool_calls")
        turn.calls = [
            {"id": f"call_{token_hex(12)}", "type": "function", "function": call}
            for call in calls[: None if several else 1]
        ]
        return json.dumps([[name, arguments] for name, arguments, _ in said.calls], sort_keys=True)
    return "" if turn.finish == "length" else normalize(extract(turn.text) or turn.text)


async def watch_growth(tree: Tree, grown: Callable[[Tree], None]) -> None:
    """Tell `grown` of a tree, every `GROWTH` seconds in which it grew, until this is cancelled."""
    known = (0, 0)
    while True:
        await asyncio.sleep(GROWTH)
        now = len(tree.simulations), sum(map(len, tree.growing.values()))
        if now != known:
            known = now
            grown(tree.ahead())


async def answer_within(name: str, attempt: Attempt) -> MethodResult:
    """The answer of a method; a search that has none within its budget draws a response with what
    is left.
    """
    response, ended_by = await ANSWERING[name](attempt)
    if (
        name == MCTS
        and response is None
        and attempt.choice is None
        and attempt.room(judged=False) > 0
    ):
        return (await attempt.draw(judged=False)).text, "tokens"
    return response, ended_by


def chosen_ids(tree: Tree, choice: Choice) -> TokenIds:
    """The tokens of the chosen response, which may go on from its node outside the tree."""
    ids = tree.sequence(choice.node)[0]
    if tree.verdict[choice.node] is None:
        for rollout in tree.rollouts:
            if rollout.node == choice.node and choice.response.endswith(rollout.text):
                return ids + rollout.token_ids
    return ids


def drawn_by_now(watch: Watch) -> Generated:
    """What there is of a sample that is not finished."""
    if not watch.samples:
        return Generated((), (), "length")
    [sample] = watch.samples
    return Generated(
        tuple(sample.tokens), tuple(sample.logprobs), "length", tuple(sample.top) or None
    )
