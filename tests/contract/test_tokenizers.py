"""Tiny tokenizers of the kinds that the field's models have: tokens and text say the same of every
part of a response, and training teaches what the chat template writes.
"""

import asyncio
import random

import pytest
from tables import read_json
from tokenizer_kinds import KINDS, chat_folder

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.device import tell_once
from alphazero_llm_trainer.engine.protocol import Generated, GenerateRequest
from alphazero_llm_trainer.engine.step_ends import joins_texts
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.grading.answers import extract
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.runs.preferences import written_steps
from alphazero_llm_trainer.serve.text_reader import TextReader
from alphazero_llm_trainer.types import Direction, Opening, Problem, Task, ids_of

QUESTION = "Ana has 2 pens. How many has she after 14 more?"
SOLUTION = "First 2 + 14 = 16.\n  So 16 pens.\n\nx = 16 漢😀\n#### 16"
TEXTS = [
    "Ana", " Ana", "  two", "    four", "\nAna", "\n\n x", "Ana \n", "漢字😀", " 漢", "é",
    "12 345\n", "a\tb", "", " ", "\n", "#### 7", "x = 3\n  y = 4\n\n\nz", "1,250.50 %", "\u200bx",
    "Ana  has\n \n",
]  # fmt: skip
TEMPLATES = [kind for kind in KINDS if KINDS[kind]["template"] is not None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: chat_folder(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


def load(folder, **overrides):
    spec = {"path": str(folder), "adapter": "full", "dtype": "float32"}
    config = load_config(overrides=[{"student": "tiny", "models": {"tiny": spec}}, overrides])
    return load_student(config, inference=True)


@pytest.fixture(scope="module")
def student(folders, kind):
    return load(folders[kind])


def written(student, *texts, end=False):
    """The tokens of a chat as transformers writes it."""
    roles = ["user", "assistant"] * len(texts)
    chat = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    text = student.tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=not end
    )
    return tuple(student.tokenizer(text, add_special_tokens=False)["input_ids"])


def test_what_training_teaches_is_what_the_template_writes(student, kind):
    prompt, worked = student.solution_ids(Task(Problem("a", QUESTION, "user"), "16", SOLUTION))
    end = student.tokenizer.convert_tokens_to_ids(KINDS[kind]["end"])
    assert worked[-1] == end == student.engine.eos_id and worked.count(end) == 1
    assert student.decode(worked).strip() == SOLUTION
    if kind in TEMPLATES:
        assert prompt == written(student, QUESTION)
        whole = written(student, QUESTION, SOLUTION, end=True)
        assert (*prompt, *worked) == whole[: len(prompt) + len(worked)]


@pytest.mark.parametrize("kind", ["llama-2", "gemma", "chatml"])
def test_a_system_prompt_and_shots_stand_in_it_once(folders, kind):
    student = load(folders[kind])
    student.opening = Opening("Be brief.", (("1 + 1?", "1 + 1 = 2\n#### 2"),), 1)
    prompt, worked = student.solution_ids(Task(Problem("a", QUESTION, "user"), "16", SOLUTION))
    assert student.decode(prompt + worked).count(QUESTION) == 1
    assert student.decode(worked).strip() == SOLUTION


def test_a_part_has_its_text_again(student):
    begun = student.encode_part("So it is.\n")
    for text in TEXTS:
        assert student.decode_part(student.encode_part(text)) == text
        assert student.decode_part(student.encode_part(text, begun), begun) == text
        whole = [*begun, *student.encode_part(text, begun)]
        assert student.decode(whole) == f"So it is.\n{text}"


def samples(student, count):
    """Tokens as a model draws them: real text, and any tokens at all."""
    yield student.solution_ids(Task(Problem("a", QUESTION, "user"), "16", SOLUTION))[1]
    yield tuple(student.encode_part(SOLUTION))
    rng, words = random.Random(3), len(student.tokenizer)
    line = student.encode_part("7\n", student.encode_part("7\n"))
    for _ in range(count):
        ids = [rng.randrange(words) for _ in range(12)]
        yield tuple(part for i in ids for part in ([i] if rng.random() < 0.7 else line))


def test_the_texts_of_steps_join_to_the_whole(student):
    steps, tokens = EngineSteps(student, 1.0), EngineTokens(student, 1.0, 1)
    for ids in samples(student, 200):
        text, logprobs = student.decode(ids), (0.0,) * len(ids)
        assert "".join(step.text for step in tokens.lines(ids, logprobs)) == text
        for cut in (0, len(ids) // 2):
            before = steps.cut(Generated(ids[:cut], logprobs[:cut], "length")).steps
            if ids_of(before) != ids[:cut]:
                continue  # a final answer in it ends a response
            after = steps.cut(Generated(ids[cut:], logprobs[cut:], "length"), before).steps
            both = [*before, *after]
            known = student.decode(ids_of(both))
            joined = "".join(step.text for step in both)
            # In the middle of a character there is no text to divide.
            assert joined == known or "\ufffd" in joined + known


def test_lines_end_where_the_text_has_them(student):
    ids = tuple(student.encode_part(SOLUTION))
    steps = EngineSteps(student, 1.0).cut(Generated(ids, (0.0,) * len(ids), "length")).steps
    lines = ["First 2 + 14 = 16.", "So 16 pens.", "x = 16 漢😀", "#### 16"]
    assert [step.text.strip() for step in steps] == lines
    indented = tuple(student.encode_part("a\n   \n  b\n"))
    assert len(student.engine.step_ends.parts(indented)) == 2


def test_a_step_of_a_teacher_has_the_text_that_is_shown(student):
    policy, problem, steps = EngineSteps(student, 1.0), Problem("a", QUESTION, "user"), []
    for line in ("First 2 + 14 = 16.", "  So 16 pens.", "漢 = 16", "#### 16"):
        adopted, _ = asyncio.run(policy.adopt(problem, steps, line, "teacher:t", Direction.RIGHT))
        [step] = adopted.steps
        assert step.text == (line if adopted.ended else f"{line}\n")
        steps.append(step)
    text = "".join(step.text for step in steps)
    assert student.decode(ids_of(steps)) == text and extract(text) == "16"
    # They are the tokens that the template has for this response.
    _, worked = student.solution_ids(Task(problem, "16", text))
    size = len(ids_of(steps)) - 1
    assert ids_of(steps)[:-1] in [worked[at : at + size] for at in range(len(worked))]


def test_steps_of_a_preference_are_one_response(student):
    lines = ["First 2 + 14 = 16.", "  So 16 pens.", "#### 16"]
    apart, together = written_steps(lines, student), written_steps("\n".join(lines), student)
    assert apart == together
    assert student.decode(sum(apart, ())) == "\n".join(lines)


def test_a_text_goes_on_with_its_space(student):
    """A response that goes on from a text or a message, as `serve` reads it."""
    whole = student.encode("Ana has 2 pens. So it is\n  16 漢")
    for cut in range(1, len(whole)):
        reader = TextReader(student.decode, before=whole[:cut])
        for end in range(cut, len(whole) + 1):
            reader.read(whole[cut:end])
        reader.end()
        known = student.decode(whole[:cut])
        if "\ufffd" not in known:
            assert known + reader.text == student.decode(whole)


def test_generation_stops_at_every_end(folders, kind):
    folder = folders[kind]
    file = folder / "generation_config.json"
    kept = read_json(file)
    marks = KINDS[kind]["marks"]
    try:
        write_json(file, kept | {"eos_token_id": [kept["eos_token_id"], 5]})
        student = load(folder)
    finally:
        write_json(file, kept)
    ids = student.tokenizer.convert_tokens_to_ids
    assert student.engine.eos_ids == {ids(KINDS[kind]["eos"]), ids(KINDS[kind]["end"]), 5}
    assert marks.count(KINDS[kind]["end"]) == 1
    request = GenerateRequest(student.prompt_ids("?"), n=60, max_new_tokens=200, temperature=3.0)
    [drawn] = asyncio.run(student.engine.generate([request]))
    ended = [sample for sample in drawn if sample.finish == "eos"]
    assert {sample.token_ids[-1] for sample in ended} == student.engine.eos_ids
    assert all(not student.engine.eos_ids & {*sample.token_ids[:-1]} for sample in drawn)


def test_a_model_whose_ends_disagree_is_named(folders, kind, caplog):
    tell_once.cache_clear()
    load(folders[kind])
    said = [line for line in caplog.messages if "ends turns with" in line]
    assert len(said) == (KINDS[kind]["eos"] != KINDS[kind]["end"])
    for line in said:
        assert f"'{KINDS[kind]['end']}'" in line and f"'{KINDS[kind]['eos']}'" in line


def test_bytes_are_read_as_they_are(student, kind):
    """The fast way: no text is read or written twice."""
    assert joins_texts(student.tokenizer) == (KINDS[kind]["reads"] == "bytes")
