"""Test tools: a fake step policy, a fake advisor, and a tiny real Llama with an engine over it."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from alphazero_llm_trainer.config.load import Config, load_training
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.prefix_tree import ROOT, PrefixTree
from alphazero_llm_trainer.engine.protocol import (
    Drawn,
    Generated,
    Limits,
    TeacherProposal,
    Verifier,
)
from alphazero_llm_trainer.engine.step_ends import StepEnds
from alphazero_llm_trainer.mcts.journal import Journal
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.embedded_source import Embedded
from alphazero_llm_trainer.problems.source import DEFAULT_LEVELS
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.rollouts import Collector, GradedTree
from alphazero_llm_trainer.training.learner import Learner
from alphazero_llm_trainer.training.methods.registry import method_of
from alphazero_llm_trainer.training.prepared import Prepared
from alphazero_llm_trainer.training.rounds import Rounds
from alphazero_llm_trainer.training.rows import Minibatches, TrainRow
from alphazero_llm_trainer.training.size import RunSize
from alphazero_llm_trainer.training.stats import RoundStats
from alphazero_llm_trainer.types import (
    Continuation,
    Cost,
    Direction,
    Problem,
    RewardParts,
    Step,
    Task,
)

END = 0  # the fake policy's end-of-sequence token; every other token of it is a character

PAD, EOS, VOCABULARY = 0, 1, 60
LINE_ENDS = frozenset({2, 3, 4})
STEP_ENDS = StepEnds(LINE_ENDS)


def grpo_config(overrides: Sequence[str | Mapping[str, Any]] = ()) -> Config:
    """GRPO by correctness over small trees; `train.method` in `overrides` names another recipe."""
    small = {"train": {"method": "grpo", "reward": None, "kl_coefficient": 0.0}}
    config = load_training(overrides=[small, *overrides])
    if config.train.groups == "chain":
        return config
    return load_training(overrides=[{"search": {"simulations": 3}}, small, *overrides])


class ScriptedPolicy:
    """FAKE policy (`search.driver.StepPolicy`): steps drawn from a seed, no model. A test tool,
    never a student.

    One token a character. `words` different steps; after each step the response closes with
    probability `close`, half of the times by a final-answer line (`answers` different ones), else
    by the end token alone. Draws depend on (own seed, problem, prefix, call seed, sample) only.
    """

    def __init__(self, seed: int, words: int = 3, close: float = 0.35, answers: int = 3) -> None:
        self.seed, self.words, self.close, self.answers = seed, words, close, answers
        self.calls = 0

    def draw(
        self, problem: Problem, steps: Sequence[Step], n: int, seed: int, limits: Limits
    ) -> list[Continuation]:
        prefix = "".join(step.text for step in steps)
        return [
            self._sample(Random(f"{self.seed}/{problem.id}/{prefix}/{seed}/{i}"), limits)
            for i in range(n)
        ]

    def _sample(self, rng: Random, limits: Limits) -> Continuation:
        steps: list[Step] = []
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

    async def continuations(
        self,
        problem: Problem,
        steps: Sequence[Step],
        n: int,
        seed: int,
        limits: Limits,
        temperature: float | None = None,  # a script has none
        without: Drawn = (),  # and repeats itself
    ) -> tuple[list[Continuation], Cost]:
        self.calls += 1
        await asyncio.sleep(0)
        drawn = self.draw(problem, steps, n, seed, limits)
        sampled = sum(len(step.token_ids) for one in drawn for step in one.steps)
        return drawn, Cost(sampled_tokens=sampled, calls=1)

    async def adopt(
        self, problem: Problem, steps: Sequence[Step], text: str, source: str, direction: Direction
    ) -> tuple[Continuation, Cost]:
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

    def __init__(self, *responses: tuple[str, ...]) -> None:
        self.responses, self.drawn = responses, 0

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        return (1, 2)

    async def continuations(
        self,
        problem: Problem,
        steps: Sequence[Step],
        n: int,
        seed: int,
        limits: Limits,
        *more: Any,
        **named: Any,
    ) -> tuple[list[Continuation], Cost]:
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
    """FAKE policy (`search.tokens.TokenPolicy`): next-token distributions are a hash of the prefix.
    A test tool.

    `words` tokens besides the end token 0; every rollout kind but "beam" is offered. `calls` counts
    what was asked.
    """

    def __init__(self, seed: int, words: int = 6, close: float = 0.25) -> None:
        self.seed, self.words, self.close, self.context = seed, words, close, 10**9
        self.calls = {"rollout": 0, "topk": 0}

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        return tuple(map(ord, problem.id))

    def text(self, token_ids: tuple[int, ...]) -> str:
        return "".join("." if token == END else chr(96 + token) for token in token_ids)

    def lines(self, token_ids: tuple[int, ...], logprobs: tuple[float, ...]) -> list[Step]:
        return [Step(token_ids, logprobs, self.text(token_ids))]

    def verdict(self, response: tuple[int, ...]) -> str | None:
        return "ended" if response and response[-1] == END else None

    def logprobs(self, prefix: tuple[int, ...]) -> list[float]:
        """`[words + 1]`, nats."""
        rng = Random(f"{self.seed}/{prefix}")
        weights = [rng.random() ** 2 * self.close, *(rng.random() ** 2 for _ in range(self.words))]
        total = math.fsum(weights)
        return [math.log(weight / total) for weight in weights]

    def ranked(self, prefix: tuple[int, ...], k: int) -> list[tuple[int, float]]:
        return sorted(enumerate(self.logprobs(prefix)), key=lambda pair: -pair[1])[:k]

    async def topk(self, prefix: tuple[int, ...], k: int) -> tuple[list[tuple[int, float]], Cost]:
        self.calls["topk"] += 1
        await asyncio.sleep(0)
        return self.ranked(prefix, k), Cost(sampled_tokens=1, calls=1)

    async def rollout(
        self,
        prompt: tuple[int, ...],
        response: tuple[int, ...],
        kind: str,
        limit: int,
        seed: int,
        top_k: int,
    ) -> tuple[Generated, Cost]:
        self.calls["rollout"] += 1
        await asyncio.sleep(0)
        rng, ids, chosen, top = Random(seed), prompt + response, [], []
        while len(chosen) < limit and (not chosen or chosen[-1] != END):
            logprobs = self.logprobs(ids)
            top.append(tuple(self.ranked(ids, top_k)))
            weights = [math.exp(logprob) for logprob in logprobs]
            token = (
                top[-1][0][0] if kind == "greedy" else rng.choices(range(len(weights)), weights)[0]
            )
            chosen.append(token)
            ids = (*ids, token)
        values = tuple(
            self.logprobs((*prompt, *response, *chosen[:i]))[token]
            for i, token in enumerate(chosen)
        )
        generated = Generated(
            tuple(chosen), values, "eos" if chosen[-1] == END else "length", tuple(top)
        )
        return generated, Cost(sampled_tokens=len(chosen), calls=1)


class ScriptedAdvisor:
    """FAKE teachers (`search.driver.Advisor`): the same proposals everywhere."""

    def __init__(self, proposals: Sequence[TeacherProposal]) -> None:
        self.proposals = list(proposals)
        self.asked: list[tuple[str, ...]] = []
        self.told: list[tuple[TeacherProposal, float, float]] = []

    def asks(self, agreement: float, best: float) -> bool:
        return True

    async def propose(
        self, problem: Problem, steps: Sequence[str], seed: int
    ) -> list[TeacherProposal]:
        self.asked.append(tuple(steps))
        return self.proposals

    def learn(self, proposal: TeacherProposal, value: float, student: float) -> None:
        self.told.append((proposal, value, student))


def hashed_reward(text: str) -> float:
    """A number in [0, 1] that depends on a text alone, with many ties (16 levels)."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 16 / 15


async def scripted_evaluate(
    problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
) -> RewardParts:
    """FAKE terminal reward: a hash of the response."""
    return RewardParts(hashed_reward("".join(step.text for step in steps)))


def a_problem(name: str = "p0") -> Problem:
    return Problem(name, f"question {name}?", "scripted")


# Far from uniform, with grouped keys.
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "bos_token_id": None, "initializer_range": 0.25,
}  # fmt: skip


def tiny_llama(seed: int = 0, positions: int = 256) -> LlamaForCausalLM:
    """A random fp32 Llama of 60 tokens."""
    torch.manual_seed(seed)
    ids = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": EOS}
    return LlamaForCausalLM(
        LlamaConfig(**SHAPE, **ids, max_position_embeddings=positions, attn_implementation="sdpa")
    ).eval()


def tiny_engine(model: LlamaForCausalLM | None = None, **settings: Any) -> InProcessEngine:
    """An engine over `model` (default: a tiny Llama) with a small cache; `settings` are
    EngineConfig's.
    """
    limits = {"max_batch": 32, "max_context": 256, "cache_tokens": 4096, **settings}
    return InProcessEngine(
        tiny_llama() if model is None else model,
        eos_id=EOS,
        step_ends=STEP_ENDS,
        settings=EngineConfig(**limits),
    )


@torch.inference_mode()
def library_logprobs(model: LlamaForCausalLM, ids: Sequence[int]) -> torch.Tensor:
    """`[len(ids), V]` next-token log-probabilities by the library's own full forward."""
    return torch.log_softmax(model(input_ids=torch.tensor([list(ids)])).logits[0].float(), dim=-1)


def library_scores(
    model: LlamaForCausalLM, prefix: Sequence[int], continuation: Sequence[int]
) -> list[float]:
    """Log-probability of each token of `continuation` after `prefix` by the library's own full
    forward.
    """
    rows = library_logprobs(model, [*prefix, *continuation])
    return [float(rows[len(prefix) + i - 1, token]) for i, token in enumerate(continuation)]


def run(main: Callable[[], Any], seconds: float = 60.0) -> Any:
    """`asyncio.run` of the coroutine function `main`; a hang is a TimeoutError."""

    async def limited() -> Any:
        return await asyncio.wait_for(main(), seconds)

    return asyncio.run(limited())


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
)


def tiny_chat(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """A folder with a random Qwen2 and a tokenizer whose chat template has every message in it, and
    its role.
    """
    tokenizer = build_tokenizer(Embedded(DEFAULT_LEVELS))
    tokenizer.add_tokens(["system", "user", "assistant", ":"])
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(seed)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = Qwen2Config(**SHAPE, **ids, vocab_size=len(tokenizer), max_position_embeddings=1024)
    Qwen2ForCausalLM(shape).to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def check_tree(tree: PrefixTree) -> None:
    """Links, locks and the free list of a prefix tree agree with each other."""
    free = set(tree.free)
    assert len(free) == len(tree.free), "a node is in the free list twice"
    seen, stack = 1, [ROOT]
    while stack:
        node = stack.pop()
        for token, child in tree.children[node].items():
            assert child not in free and tree.parent[child] == node and tree.token[child] == token
            assert tree.ready[node] or not tree.ready[child], "a child is ready before its parent"
            assert tree.ready[child] or not tree.memoised[child]
            assert tree.locks[child] >= 0, "unlocked too often"
            seen += 1
            stack.append(child)
    assert seen + len(free) == len(tree.children) <= tree.capacity, "nodes were lost"


def update(learner: Learner, minibatch: Sequence[TrainRow]) -> dict[str, float]:
    """One update, as `Run.train` makes it."""
    for part in learner.parts(minibatch):
        scores = learner.score(part)
        loss, figures = learner.objective.loss(part, scores, learner.totals)
        learner.backward(loss, scores, figures)
    figures_of_update = learner.clip()
    learner.step()
    return figures_of_update


@dataclass
class Source:
    """A round's trees, and what becomes of them."""

    config: Config
    rounds: Rounds
    builder: Any
    stats: RoundStats | None = None

    def minibatches(self) -> Minibatches:
        trees, self.stats = self.rounds.search(0)
        return self.builder.minibatches(0, trees, self.stats)

    def rows(self) -> list[TrainRow]:
        return [row for batch in self.minibatches() for row in batch]

    def trees(self) -> list[GradedTree]:
        return self.rounds.restored(0)

    def prompt(self, tree: GradedTree) -> tuple[int, ...]:
        return self.builder.student.prompt_ids(tree.task.problem.question)

    @classmethod
    def of(
        cls, config: Config, tasks: Sequence[Task], folder: Path, verifier: Verifier | None = None
    ) -> Source:
        """The first round of `tasks`, without demonstrations; its journal is in `folder`."""
        student = load_student(config)
        method = method_of(config.train.method)
        size = RunSize(config, method.supervised)
        prepared = Prepared(config, method, size, [], [*tasks], [], [])
        collector = Collector(student, config, method, None)
        shared: Any = {"on_tree": lambda tree: None, "stop": lambda: False}
        rounds = Rounds(prepared, student, collector, Journal(folder / "journal.jsonl"), **shared)
        return cls(config, rounds, method.rows(prepared, student, collector, verifier))
