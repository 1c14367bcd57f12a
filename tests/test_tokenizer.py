import json
import shutil

import pytest

from alphazero_llm_trainer.errors import CheckpointError
from alphazero_llm_trainer.policy.student import PACKAGED, load_tokenizer
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


@pytest.mark.parametrize(
    "kind", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "LlamaTokenizer", "GPT2Tokenizer", "GemmaTokenizer"]
)
def test_a_folder_that_names_another_class_is_read_as_its_file_says(kind, tmp_path):
    """For training transformers' own class was taken, which made `314?` of a question."""
    folder = shutil.copytree(PACKAGED, tmp_path / "folder")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": kind}))
    expected = load_tokenizer(str(PACKAGED))
    text = "Ana has 314 pens. How many?\n"
    found = load_tokenizer(str(folder))
    assert found(text)["input_ids"] == expected(text)["input_ids"]
    assert (found.eos_token_id, found.chat_template) == (expected.eos_token_id, expected.chat_template)
    found.save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again"))(text)["input_ids"] == expected(text)["input_ids"]


def test_a_class_that_agrees_is_kept(tmp_path):
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(PACKAGED).save_pretrained(tmp_path)
    kept = load_tokenizer(str(tmp_path))
    assert type(kept) is type(AutoTokenizer.from_pretrained(tmp_path))


def test_a_tokenizer_that_loses_text_is_one_sentence(tmp_path):
    folder = shutil.copytree(PACKAGED, tmp_path / "folder")
    file = folder / "tokenizer.json"
    broken = json.loads(file.read_text())
    broken["decoder"] = {"type": "Strip", "content": "3", "start": 1, "stop": 0}
    file.write_text(json.dumps(broken))
    with pytest.raises(CheckpointError, match="gives back"):
        load_tokenizer(str(folder))
