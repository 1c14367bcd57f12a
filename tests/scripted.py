"""Scripted policies, advisors and rewards, for tests of search: no model, no torch."""

import asyncio
import hashlib
import json
import math
from random import Random

from alphazero_llm_trainer.chat.tool_calls import FORMS
from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Generated, Judgement, StepPolicy
from alphazero_llm_trainer.mcts.driver import Search
from alphazero_llm_trainer.problems.worlds import Episodes
from alphazero_llm_trainer.types import (
    Continuation,
    Cost,
    Problem,
    RewardParts,
    Said,
    Step,
    ToolCall,
)

END = 0  # the fake policy's end-of-sequence token; every other token of it is a character


class ScriptedPolicy:
    """FAKE policy (`engine.protocol.StepPolicy`): steps drawn from a seed, no model. A test tool,
    never a student.

    One token a character. `words` different steps; after each step the response closes with
    probability `close`, half of the times by a final-answer line (`answers` different ones), else
    by the end token alone. Draws depend on (own seed, problem, prefix, call seed, sample) only.
    """

    episode, state_answer = StepPolicy.episode, StepPolicy.state_answer

    def __init__(self, seed, words=3, close=0.35, answers=3):
        self.seed, self.words, self.close, self.answers = seed, words, close, answers
        self.calls = 0

    def draw(self, problem, steps, n, seed, limits):
        prefix = "".join(step.text for step in steps)
        return [
            self._sample(Random(f"{self.seed}/{problem.id}/{prefix}/{seed}/{i}"), limits)
            for i in range(n)
        ]

    def _sample(self, rng, limits):
        steps = []
        left, ended = limits.tokens, False
        while left > 0 and len(steps) < limits.steps and not ended:
            ended = rng.random() < self.close
            final = rng.random() < 0.5
            if ended:
                text, ids = (f"#### {rng.randrange(self.answers)}", ()) if final else ("", ())
                ids = (*map(ord, text), END)
            else:
                word = rng.randrange(self.words)
                text = f"w{word}" + "x" * word + "\n"
                ids = tuple(map(ord, text))
            if len(ids) > left:
                ids, ended = ids[:left], False
                text = "".join(chr(token) for token in ids if token != END)
            left -= len(ids)
            steps.append(Step(ids, tuple(-0.1 - 0.01 * (token % 7) for token in ids), text))
        return Continuation(
            tuple(steps), ended, cut=not ended and not steps[-1].text.endswith("\n")
        )

    def prompt_ids(self, problem):
        return (1, 2, 3)

    async def continuations(self, problem, steps, n, seed, limits, temperature=None, without=()):
        self.calls += 1  # a script has no temperature and repeats itself
        await asyncio.sleep(0)
        drawn = self.draw(problem, steps, n, seed, limits)
        sampled = sum(len(step.token_ids) for one in drawn for step in one.steps)
        return drawn, Cost(sampled_tokens=sampled, calls=1)

    async def adopt(self, problem, steps, text, source, direction):
        final = "####" in text
        ids = (*map(ord, text), END) if final else tuple(map(ord, text + "\n"))
        step = Step(ids, tuple(-1.0 for _ in ids), text if final else text + "\n")
        return Continuation((step,), final, source, direction), Cost(
            scored_tokens=len(ids), calls=1
        )


class Lines:
    """FAKE policy: responses in their turn, the last one again and again; a line is one token. A
    test tool.
    """

    episode, state_answer = StepPolicy.episode, StepPolicy.state_answer

    def __init__(self, *responses):
        self.responses, self.drawn = responses, 0

    def prompt_ids(self, problem):
        return (1, 2)

    async def continuations(self, problem, steps, n, seed, limits, *more, **named):
        before = tuple(step.text for step in steps)
        known = [
            one for one in self.responses if one[: len(before)] == before and len(one) > len(before)
        ]
        rest = known[min(self.drawn, len(known) - 1)][len(before) :]
        self.drawn += not before
        lines = rest[: min(limits.steps, limits.tokens)]
        found = tuple(Step((len(text),), (-0.1,), text) for text in lines)
        return [Continuation(found, len(lines) == len(rest))], Cost(
            sampled_tokens=len(lines), calls=1
        )


class ScriptedTokens:
    """FAKE policy (`mcts.expansion.TokenPolicy`): next-token distributions are a hash of the
    prefix. A test tool.

    `words` tokens besides the end token 0; every rollout kind but "beam" is offered. `calls` counts
    what was asked.
    """

    def __init__(self, seed, words=6, close=0.25):
        self.seed, self.words, self.close, self.context = seed, words, close, 10**9
        self.calls = {"rollout": 0, "topk": 0}

    def prompt_ids(self, problem):
        return tuple(map(ord, problem.id))

    def text(self, token_ids):
        return "".join("." if token == END else chr(96 + token) for token in token_ids)

    def lines(self, token_ids, logprobs):
        return [Step(token_ids, logprobs, self.text(token_ids))]

    def verdict(self, response):
        return "ended" if response and response[-1] == END else None

    def logprobs(self, prefix):
        """`[words + 1]`, nats."""
        rng = Random(f"{self.seed}/{prefix}")
        weights = [rng.random() ** 2 * self.close, *(rng.random() ** 2 for _ in range(self.words))]
        total = math.fsum(weights)
        return [math.log(weight / total) for weight in weights]

    def ranked(self, prefix, k):
        return sorted(enumerate(self.logprobs(prefix)), key=lambda pair: -pair[1])[:k]

    async def topk(self, prefix, k):
        self.calls["topk"] += 1
        await asyncio.sleep(0)
        return self.ranked(prefix, k), Cost(sampled_tokens=1, calls=1)

    async def rollout(self, asked):
        self.calls["rollout"] += 1
        await asyncio.sleep(0)
        rng = Random(asked.seed)
        ids = asked.prompt + asked.response
        chosen = []
        values = []
        top = []
        while len(chosen) < asked.limit and (not chosen or chosen[-1] != END):
            logprobs = self.logprobs(ids)
            top.append(tuple(self.ranked(ids, asked.top_k)))
            [token] = rng.choices(range(len(logprobs)), list(map(math.exp, logprobs)))
            if asked.kind == "greedy":
                token = top[-1][0][0]
            chosen.append(token)
            values.append(logprobs[token])
            ids = (*ids, token)
        finish = "eos" if chosen[-1] == END else "length"
        generated = Generated(tuple(chosen), tuple(values), finish, tuple(top))
        return generated, Cost(sampled_tokens=len(chosen), calls=1)


class ScriptedAdvisor:
    """FAKE teachers (`mcts.expansion.Advisor`): the same proposals everywhere, where `wants` says
    so; it keeps what it is asked and told.
    """

    def __init__(self, proposals, wants=lambda agreement, best: True):
        self.proposals, self.wants = proposals, wants
        self.standings, self.asked, self.told = [], [], []

    def asks(self, agreement, best):
        self.standings.append((agreement, best))
        return self.wants(agreement, best)

    async def propose(self, problem, steps, seed):
        self.asked.append(tuple(steps))
        return self.proposals

    def learn(self, *of_proposal):
        self.told.append(of_proposal)


class Rule:
    """FAKE verifier: judges each step by a function of its text."""

    name, checks, guides, scored_tokens = "rule", True, False, 0

    def __init__(self, good, computes=False):
        self.good, self.computes = good, computes

    async def __call__(self, problem, prompt_ids, steps):
        scores = tuple(self.good(step.text) for step in steps)
        return Judgement(scores, min(scores, default=1.0))


def hashed_reward(text):
    """A number in [0, 1] that depends on a text alone, with many ties (16 levels)."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 16 / 15


async def scripted_evaluate(problem, steps, directions, verdict):
    """FAKE terminal reward: a hash of the response."""
    return RewardParts(hashed_reward("".join(step.text for step in steps)))


def a_problem(name="p0"):
    return Problem(name, f"question {name}?", "scripted")


async def unasked(*given):
    raise AssertionError("a verifier's search asks no other judge")


def search(policy, problem=None, seed=0, tree=None, *, evaluate=scripted_evaluate, **more):
    """A whole search. `more`: the fields of `SearchConfig`, and the other arguments of `Search`."""
    own = ("advisor", "finished", "stop", "value", "generating", "verifier")
    parts = {name: more.pop(name) for name in own if name in more}
    made = Search(policy, evaluate, SearchConfig.model_validate(more), **parts)
    return run(lambda: made.run(problem or a_problem(), seed, tree))


def run(main, seconds=60.0):
    """`asyncio.run` of the coroutine function `main`; a hang is a TimeoutError."""

    async def limited():
        return await asyncio.wait_for(main(), seconds)

    return asyncio.run(limited())


def write_calls(said, form):
    """A turn in a form, as `tool_calls.read_calls` reads it."""
    calls = [
        f"{call.name}{form.apart}{json.dumps(call.arguments)}"
        if form.apart
        else json.dumps({"name": call.name, form.key: call.arguments})
        for call in said.calls
    ]
    if form is FORMS["mistral"] and calls:
        calls = [f"[{', '.join(calls)}]"]
    around = ("\n{}\n" if form.end else "{}").join((form.begin, form.end))
    between = "\n" if form.end else ""
    parts = [said.text] if said.text or not calls else []
    return between.join([*parts, *(around.replace("{}", call, 1) for call in calls)])


def call(name, **arguments):
    """A turn that calls a tool, in Hermes' form."""
    return write_calls(Said("", (ToolCall(name, arguments),)), FORMS["hermes"])


def walk(make, turns):
    """The place after turns in one line of acts in a world of `make`, and its episodes."""

    async def go():
        async with Episodes(make) as episodes:
            place = await episodes.open()
            for turn in turns:
                place = await episodes.act(place, turn)
            return place, episodes

    return asyncio.run(go())
