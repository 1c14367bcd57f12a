import pytest

from alphazero_llm_trainer.problems import embedded
from alphazero_llm_trainer.problems.tokenizer import EOS, PAD, UNK, build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_round_trip_is_exact_and_nothing_is_unknown(tokenizer):
    for split in embedded.SPLITS:
        for task in embedded.load(split, 1000, (1, 2, 3, 4)):
            text = f"{task.problem.question}\n{task.solution}"
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids, text
            assert tokenizer.decode(ids) == text


def test_a_step_is_eight_tokens_and_pieces_join_at_line_ends(tokenizer):
    assert tokenizer.tokenize("12 + 7 = 19\n") == ["1", "2", " + ", "7", " = ", "1", "9", "\n"]
    task = embedded.build("train", 3, 2)
    parts = [task.problem.question + "\n", *(line + "\n" for line in task.solution.split("\n"))]
    together = tokenizer("".join(parts))["input_ids"]
    assert [i for part in parts for i in tokenizer(part)["input_ids"]] == together


def test_it_is_small_the_same_every_time_and_has_no_hidden_tokens(tokenizer):
    again = build_tokenizer()
    assert again.get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) <= 250
    assert [tokenizer.convert_tokens_to_ids(t) for t in (PAD, EOS, UNK)] == [0, 1, 2]
    assert tokenizer.pad_token == PAD and tokenizer.eos_token == EOS and tokenizer.bos_token is None
    assert tokenizer("")["input_ids"] == []


SYSTEM = {"role": "system", "content": "Think."}
USER = {"role": "user", "content": "How many?"}


@pytest.mark.parametrize(
    ("messages", "generate", "text"),
    [
        ([USER], True, "How many?\n"),
        ([SYSTEM, USER, {"role": "assistant", "content": "1 + 2 = 3"}], True, "How many?\n1 + 2 = 3\n"),
        ([USER, {"role": "assistant", "content": "1 + 2 = 3\n"}], True, "How many?\n1 + 2 = 3\n"),
        (
            [USER, {"role": "assistant", "content": "1 + 2 = 3"}, {"role": "assistant", "content": "#### 3"}],
            False,
            "How many?\n1 + 2 = 3\n#### 3",
        ),
    ],
)
def test_chat_template(tokenizer, messages, generate, text):
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=generate, tokenize=False) == text
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=generate, return_dict=False)
    assert ids == tokenizer(text)["input_ids"]
