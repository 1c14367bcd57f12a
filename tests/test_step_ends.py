"""Where steps end: one rule on token ids, for every tokenizer and every engine."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.step_ends import StepEnds, step_ends
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.eval.methods import answer_search
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks

from support import LINE_ENDS, STEP_ENDS, VOCABULARY, run, tiny_engine  # isort: skip

TEXT = "First, 3.5 + 2 = 5.5 apples.\n\nSo Ana has 5.5. Is it more?\n  Yes!\n\n\n#### 5.5\n"


@functools.cache
def bpe() -> Any:
    """A byte-level BPE whose tokens hold a full stop and line ends together."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    inner.train_from_iterator([TEXT, "a.\n\nb.\n\nc.\n\n", "x.\ny.\n" * 20, "  \n" * 9], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.fixture
def merging() -> Any:
    return bpe()


def cut(tokenizer: Any, rule: str, text: str) -> list[str]:
    """The text's steps; what goes on is the last."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    ends = step_ends(tokenizer, rule)
    return [tokenizer.decode(ids[start:end]) for start, end in pairwise((0, *ends.parts(ids)))]


def test_blank_lines_belong_to_the_step_after_them(merging: Any) -> None:
    pieces = cut(merging, "line", TEXT)
    assert "".join(pieces) == TEXT
    assert [piece.strip() for piece in pieces] == [
        "First, 3.5 + 2 = 5.5 apples.", "So Ana has 5.5. Is it more?", "Yes!", "#### 5.5",
    ]  # fmt: skip
    assert cut(merging, "line", "\n\n \n") == ["\n\n \n"]


def test_sentences_end_at_their_marks_and_decimal_points_are_none(merging: Any) -> None:
    pieces = cut(merging, "sentence", TEXT)
    assert "".join(pieces) == TEXT
    assert [piece.strip() for piece in pieces][:1] == ["First, 3.5 + 2 = 5.5 apples."]
    assert "Is it more?" in [piece.strip().removeprefix("So Ana has 5.5. ") for piece in pieces]
    assert not any(piece.rstrip().endswith("3.") for piece in pieces)


def test_steps_of_a_number_of_tokens_and_of_a_pattern(merging: Any) -> None:
    ids = merging.encode(TEXT)
    assert step_ends(merging, "tokens:7").cut(ids) == list(range(7, len(ids) + 1, 7))
    assert "".join(cut(merging, "regex:=", TEXT)) == TEXT
    assert cut(merging, "regex:=", "a = b = c")[0].rstrip().endswith("=") and len(cut(merging, "regex:=", "a=b=c")) == 3
    with pytest.raises(ConfigError, match="is no pattern"):
        step_ends(merging, "regex:(")
    with pytest.raises(ConfigError, match=r"search\.step"):
        load_config(overrides=["search.step=paragraph"])


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab3.?! \n\t\u00e9", max_size=60))
def test_steps_join_to_the_text_and_each_has_something_in_it(text: str) -> None:
    pieces = cut(bpe(), "line", text)
    assert "".join(pieces) == text
    for piece in pieces[:-1]:
        assert "\n" in piece and piece.strip()
    lines = [line for line in text.split("\n")[:-1] if line.strip()]
    # A token that holds several lines is never cut, so there may be fewer steps than lines.
    assert len(pieces) - 1 <= len(lines)


def test_an_engine_counts_steps_and_not_line_ends() -> None:
    """Most tokens are white space here, line end 2 too: it ends a step that has something in it, and no other."""
    ends = StepEnds(LINE_ENDS, blanks=frozenset({2, *range(5, VOCABULARY - 8)}))
    engine = tiny_engine()
    engine.step_ends = engine.queue.step_ends = ends
    seen = set()
    for seed in range(60):
        request = GenerateRequest((5, 6, 7), max_new_tokens=30, temperature=2.0, seed=seed, max_steps=2)
        [[one]] = run(lambda request=request: engine.generate([request]))
        if one.finish == "stop":
            assert ends.cut(one.token_ids)[-1] == len(one.token_ids) and len(ends.cut(one.token_ids)) == 2
            seen.add(len(STEP_ENDS.cut(one.token_ids)))
    assert seen - {2}, "no blank line was drawn: the test shows nothing"


def test_an_engine_ends_a_sample_in_a_step_that_is_too_long() -> None:
    engine = tiny_engine()
    free = GenerateRequest((5, 6, 7), n=24, max_new_tokens=40, seed=5)
    samples, limited = run(lambda: engine.generate([free, replace(free, max_step_tokens=6)]))
    cut = 0
    for whole, one in zip(samples, limited, strict=True):
        begun = [0, *STEP_ENDS.cut(whole.token_ids), len(whole.token_ids)]
        # The first place where a step has six tokens and no end there.
        far = next((a + 6 for a, b in pairwise(begun) if b - a > 6 or (b - a == 6 and b not in begun[:-1])), None)
        if whole.finish == "eos" and far == len(whole.token_ids):
            far = None
        assert one.token_ids == whole.token_ids[:far]
        assert one.finish == (whole.finish if far is None else "length")
        cut += far is not None
    assert 0 < cut < len(samples)


def test_a_rambling_step_is_cut_and_its_verdict_says_so() -> None:
    config = load_config(overrides=["student=embedded", "search.max_step_tokens=6", "search.iterations=4"])
    student = load_student(config)
    [problem] = [task.problem for task in load_tasks("embedded", "test", 1)]

    def searched() -> Tree:
        return asyncio.run(answer_search(student, config, None).run(problem, 7)).tree

    tree, generate = searched(), student.engine.generate
    long = [node for node in range(1, len(tree)) if tree.verdict[node] == "step length"]
    assert long and all(len(tree.token_ids[node]) == 6 and tree.reward[node] == 0.0 for node in long)
    assert max(map(len, tree.token_ids)) == 6
    # An engine that goes on in such a step, as vLLM does, gives the same tree.
    student.engine.generate = lambda requests: generate([replace(one, max_step_tokens=None) for one in requests])  # type: ignore[method-assign]
    assert searched().to_dict() == tree.to_dict()
