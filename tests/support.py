"""Tiny real models and what is measured over them: a random Llama, an engine, a round of
training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from alphazero_llm_trainer.chat.tool_calls import as_message
from alphazero_llm_trainer.config.load import Config, load_training
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.prefix_tree import ROOT_NODE
from alphazero_llm_trainer.engine.step_ends import StepEnds
from alphazero_llm_trainer.learning.collector import Collector
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.learning.prepared import Prepared
from alphazero_llm_trainer.learning.rounds import Rounds
from alphazero_llm_trainer.learning.size import RunSize
from alphazero_llm_trainer.learning.stats import RoundStats
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.embedded_source import Embedded
from alphazero_llm_trainer.problems.source import DEFAULT_LEVELS
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.tree.journal import Journal
from alphazero_llm_trainer.types import Said, ToolCall

PAD, EOS, VOCABULARY = 0, 1, 60
LINE_ENDS = frozenset({2, 3, 4})
STEP_ENDS = StepEnds(LINE_ENDS)


def grpo_config(overrides=()):
    """GRPO by correctness over small trees; `train.method` in `overrides` names another recipe."""
    small = {"train": {"method": "grpo", "reward": None, "kl_coefficient": 0.0}}
    config = load_training(overrides=[small, *overrides])
    if config.train.groups == "chain":
        return config
    return load_training(overrides=[{"search": {"simulations": 3}}, small, *overrides])


# Far from uniform, with grouped keys.
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": None, "initializer_range": 0.25,
}  # fmt: skip


def tiny_llama(seed=0, positions=256):
    """A random fp32 Llama of 60 tokens."""
    torch.manual_seed(seed)
    ids = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": EOS}
    return LlamaForCausalLM(
        LlamaConfig(**SHAPE, **ids, max_position_embeddings=positions, attn_implementation="sdpa")
    ).eval()


def tiny_engine(model=None, **settings):
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
def library_logprobs(model, ids):
    """`[len(ids), V]` next-token log-probabilities by the library's own full forward."""
    return torch.log_softmax(model(input_ids=torch.tensor([list(ids)])).logits[0].float(), dim=-1)


def library_scores(model, prefix, continuation):
    """Log-probability of each token of `continuation` after `prefix` by the library's own full
    forward.
    """
    rows = library_logprobs(model, [*prefix, *continuation])
    return [float(rows[len(prefix) + i - 1, token]) for i, token in enumerate(continuation)]


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
)


def tiny_chat(folder, seed=0, dtype=torch.float32):
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


TOOLS = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": {key: {"type": "string"}}, "required": [key]}}}
    for name, about, key in (
        ("calculate", "Compute an expression.", "expression"), ("look", "Look.", "at"))
]  # fmt: skip
SYSTEM = {"role": "system", "content": "Answer."}


def call_tools(*calls, text=""):
    """The assistant's message that calls tools, by names and arguments."""
    return as_message(Said(text, tuple(ToolCall(*call) for call in calls)))


# What `tool_student` knows by heart: a question, the turn that follows, and so on.
SUM, TWO = ("calculate", {"expression": "12 * 7"}), ("look", {"at": "é"})
EPISODES = {
    "What is 12 times 7?": [call_tools(SUM, text="I compute."), "84", "#### 84"],
    "Two things?": [call_tools(SUM, TWO), "84", "seen", "Done."],
    "Hello?": ["Hi."],
    "Bad?": ["<tool_call>\n{'name'\n</tool_call>"],
    "Other?": [call_tools(("gone", {}))],
}


def qwen_tokenizer(*texts):
    """A tokenizer with Qwen's marks and chat template: bytes, and what is frequent in `texts`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    template = (files("trl") / "chat_templates" / "qwen2_5.jinja").read_text(encoding="utf-8")
    core.train_from_iterator([template, *texts], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def tool_student(folder):
    """A folder with a tiny Qwen2 under Qwen's chat template, which has learnt EPISODES."""
    chats = []
    for question, turns in EPISODES.items():
        chats.append([SYSTEM, {"role": "user", "content": question}])
        for turn in turns:
            role = "tool" if turn in ("84", "seen") else "assistant"
            chats[-1].append({"role": role, "content": turn} if isinstance(turn, str) else turn)
    tokenizer = qwen_tokenizer(json.dumps(TOOLS), json.dumps(chats))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = {**SHAPE, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    model = Qwen2ForCausalLM(Qwen2Config(**shape | {"initializer_range": 0.05}))
    rows, open_turn = [], tokenizer("<|im_start|>assistant\n")["input_ids"]
    for chat in chats:
        tokens = tokenizer.apply_chat_template(chat, tools=TOOLS)["input_ids"]
        labels, learns = [-100] * len(tokens), False
        for at, token in enumerate(tokens):
            labels[at] = token if learns else -100
            learns &= token != tokenizer.eos_token_id
            learns |= tokens[at + 1 - len(open_turn) : at + 1] == open_turn
        rows.append((torch.tensor(tokens), torch.tensor(labels)))
    tokens, labels = (pad_sequence(one, True, -100) for one in zip(*rows, strict=True))
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0), 1.0
    while loss > 0.004:
        found = model(input_ids=tokens.clamp(min=0), labels=labels).loss
        optimizer.zero_grad()
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = float(found.detach())
    model.save_pretrained(folder)
    return folder


def check_tree(tree):
    """Links, locks and the free list of a prefix tree agree with each other."""
    free = set(tree.free)
    assert len(free) == len(tree.free), "a node is in the free list twice"
    seen, stack = 1, [ROOT_NODE]
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


@dataclass
class Source:
    """A round's trees, and what becomes of them."""

    config: Config
    rounds: Rounds
    builder: Any
    stats: RoundStats | None = None

    def minibatches(self):
        trees, self.stats = self.rounds.search(0)
        return self.builder.minibatches(0, trees, self.stats)

    def rows(self):
        return [row for batch in self.minibatches() for row in batch]

    def trees(self):
        return self.rounds.restore_trees(0)

    def prompt(self, tree):
        return self.builder.student.prompt_ids(tree.task.problem.question)

    @classmethod
    def of(cls, config, tasks, folder, verifier=None):
        """The first round of `tasks`, without demonstrations; its journal is in `folder`."""
        student = load_student(config)
        method = method_of(config.train.method)
        size = RunSize(config, method.supervised)
        prepared = Prepared(config, method, size, [], [*tasks], [], [])
        collector = Collector(student, config, method, None)
        shared = {"on_tree": lambda tree: None, "stop": lambda: False}
        rounds = Rounds(prepared, student, collector, Journal(folder / "journal.jsonl"), **shared)
        return cls(config, rounds, method.rows(prepared, student, collector, verifier))
