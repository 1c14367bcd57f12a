"""Where steps end: one rule on token ids, for every tokenizer and every engine."""

import functools
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.step_ends import StepEnds, step_ends

from scripted import run  # isort: skip
from support import LINE_ENDS, STEP_ENDS, VOCABULARY, tiny_engine  # isort: skip

TEXT = "First, 3.5 + 2 = 5.5 apples.\n\nSo Ana has 5.5. Is it more?\n  Yes!\n\n\n#### 5.5\n"


@functools.cache
def bpe():
    """A byte-level BPE whose tokens hold a full stop and line ends together."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train_from_iterator([TEXT, "a.\n\nb.\n\nc.\n\n", "x.\ny.\n" * 20, "  \n" * 9], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.fixture
def merging():
    return bpe()


def cut(tokenizer, rule, text):
    """The text's steps; what goes on is the last."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    ends = step_ends(tokenizer, rule)
    return [tokenizer.decode(ids[start:end]) for start, end in pairwise((0, *ends.parts(ids)))]


def test_blank_lines_belong_to_the_step_after_them(merging):
    pieces = cut(merging, "line", TEXT)
    assert "".join(pieces) == TEXT
    assert [piece.strip() for piece in pieces] == [
        "First, 3.5 + 2 = 5.5 apples.", "So Ana has 5.5. Is it more?", "Yes!", "#### 5.5",
    ]  # fmt: skip
    assert cut(merging, "line", "\n\n \n") == ["\n\n \n"]


def test_sentences_end_at_their_marks_and_decimal_points_are_none(merging):
    pieces = cut(merging, "sentence", TEXT)
    assert "".join(pieces) == TEXT
    assert [piece.strip() for piece in pieces][:1] == ["First, 3.5 + 2 = 5.5 apples."]
    assert "Is it more?" in [piece.strip().removeprefix("So Ana has 5.5. ") for piece in pieces]
    assert not any(piece.rstrip().endswith("3.") for piece in pieces)


def test_a_thought_is_not_cut_in_a_formula_nor_before_one(merging):
    thoughts = [
        "### Step 1\n**Find the distance:**\nShe drives for 2 hours:\n\\[\n2 \\times 60 = "
        "120\n\\]\n\n",
        "Then code.\n",
        "```python\nx = 3\n\nprint(x)\n```\n",
        "$$\n120 / 30 = 4\n$$\n",
        "#### 4\n",
        "After it.",
    ]
    assert [piece.strip() for piece in cut(merging, "thought", "".join(thoughts))] == [
        one.strip() for one in thoughts
    ]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab3.?! \n\t\u00e9", max_size=60))
def test_steps_join_to_the_text_and_each_has_something_in_it(text):
    pieces = cut(bpe(), "line", text)
    assert "".join(pieces) == text
    for piece in pieces[:-1]:
        assert "\n" in piece and piece.strip()
    lines = [line for line in text.split("\n")[:-1] if line.strip()]
    # A token that holds several lines is never cut, so there may be fewer steps than lines.
    assert len(pieces) - 1 <= len(lines)


def test_an_engine_counts_steps_and_not_line_ends():
    """Most tokens are white space here, line end 2 too: it ends a step that has something in it,
    and no other.
    """
    ends = StepEnds(LINE_ENDS, blanks=frozenset({2, *range(5, VOCABULARY - 8)}))
    engine = tiny_engine()
    engine.step_ends = engine.queue.step_ends = ends
    seen = set()
    for seed in range(60):
        request = GenerateRequest(
            (5, 6, 7), max_new_tokens=30, temperature=2.0, seed=seed, max_steps=2
        )
        [[one]] = run(lambda request=request: engine.generate([request]))
        if one.finish == "stop":
            assert (
                ends.cut(one.token_ids)[-1] == len(one.token_ids)
                and len(ends.cut(one.token_ids)) == 2
            )
            seen.add(len(STEP_ENDS.cut(one.token_ids)))
    assert seen - {2}, "no blank line was drawn: the test shows nothing"


def test_a_model_may_have_more_tokens_than_its_tokenizer(merging):
    """Qwen2.5's has 271 more: their text is empty, under every rule."""
    ids = merging.encode("a\n", add_special_tokens=False)
    beyond = len(merging) + 7
    for rule in ("line", "sentence", "thought"):
        ends = step_ends(merging, rule)
        assert ends.cut([beyond, *ids, beyond, *ids]) == [1 + len(ids), 2 + 2 * len(ids)]


def test_a_vocabulary_may_have_gaps():
    words = {"a": 0, ".": 1, "\n": 9}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)))
    assert step_ends(tokenizer).tokens == {9}
    assert step_ends(tokenizer, "sentence").cut([0, 1, 0, 9]) == [2, 4]
