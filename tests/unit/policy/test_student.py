"""Students: the shipped one, its tokenizer, other architectures and formats, and damaged
folders.
"""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tables import read_json
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2VLConfig,
    T5Config,
    ViTConfig,
)

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, RequestError
from alphazero_llm_trainer.eval.greedy import answer
from alphazero_llm_trainer.files import read_object, write_json
from alphazero_llm_trainer.grading.answers import extract
from alphazero_llm_trainer.learning.models import make_trainable, save_adapter
from alphazero_llm_trainer.policy import fetch
from alphazero_llm_trainer.policy import student as student_module
from alphazero_llm_trainer.policy.adapters import activate, load_adapter, own_parameters
from alphazero_llm_trainer.policy.folders import find_model, with_model
from alphazero_llm_trainer.policy.public_prm import load_public
from alphazero_llm_trainer.policy.student import (
    PACKAGED,
    check_device,
    load_student,
    load_tokenizer,
    make_student,
)
from alphazero_llm_trainer.problems.embedded_source import Embedded
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.source import DEFAULT_LEVELS
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.runs.sft import QUESTION_WEIGHT, sft_rows, student_from_scratch
from alphazero_llm_trainer.types import Opening

MANIFEST = read_json(PACKAGED / "manifest.json")


def test_it_was_trained_on_the_demonstrations_that_the_configuration_names():
    config = load_config(overrides=["student=embedded"])
    tasks = load_tasks("embedded", "train", config.train.demonstrations)
    rows = sft_rows(tasks, load_student(config), QUESTION_WEIGHT)
    data = json.dumps([[*row.prompt_ids, *row.completion_ids] for row in rows])
    digest = hashlib.sha256(data.encode()).hexdigest()
    assert digest == MANIFEST["data_sha256"]
    assert MANIFEST["rows"] == len(rows)
    assert MANIFEST["levels"] == list(DEFAULT_LEVELS)


@pytest.mark.slow
def test_it_reproduces_its_recorded_accuracy():
    student = load_student(load_config(overrides=["student=embedded"]))
    recorded = MANIFEST["test_greedy"]
    answers = answer(student, load_tasks("embedded", "test", recorded["problems"]), max_tokens=160)
    accuracy = sum(answers.first) / len(answers.first)
    # Greedy answers are exact; only a tie within rounding error can fall otherwise on another
    # processor.
    assert abs(accuracy - recorded["value"]) <= 0.005
    assert 0.45 <= accuracy <= 0.61
    assert recorded["low"] < accuracy < recorded["high"]


def test_its_tokenizer_is_the_generators_own():
    student = load_student(load_config(overrides=["student=embedded"]))
    assert student.tokenizer.get_vocab() == build_tokenizer(Embedded(DEFAULT_LEVELS)).get_vocab()
    question = load_tasks("embedded", "test", 1)[0].problem.question
    assert student.decode(student.prompt_ids(question)) == question + "\n"


# -- chat models -----------------------------------------------------------------------------------


def test_all_of_a_models_end_tokens_end_a_response_and_stay_its_last():
    """Llama 3 has three. A token that the student samples often is made the second one."""
    student = load_student(load_config(overrides=["student=embedded"]))
    prompt = student.prompt_ids(load_tasks("embedded", "test", 1)[0].problem.question)
    request = GenerateRequest(prompt, max_new_tokens=60, temperature=0.0)
    [[whole]] = asyncio.run(student.engine.generate([request]))
    assert whole.finish == "eos" and whole.token_ids[-1] == student.tokenizer.eos_token_id
    second = whole.token_ids[2]
    first_at = whole.token_ids.index(second)
    student.model.generation_config.eos_token_id = [student.tokenizer.eos_token_id, second]
    again = make_student(
        "two ends", student.model, student.tokenizer, student.spec, load_config(), Opening()
    )
    assert again.engine.eos_ids == {student.tokenizer.eos_token_id, second}
    [[cut]] = asyncio.run(again.engine.generate([request]))
    assert (cut.finish, cut.token_ids) == ("eos", whole.token_ids[: first_at + 1])


def test_templates_are_asked_for_no_hidden_monologue_and_always_the_same_day():
    student = load_student(load_config(overrides=["student=embedded"]))
    student.tokenizer.chat_template = (
        "{{ messages[0]['content'] }} {% if enable_thinking is defined and not enable_thinking "
        "%}3{% else %}4{% endif %}"
        "{% if date_string is defined %} + 3{% endif %}"
        "{{ strftime_now('%d %B %Y') }}"
    )
    question = {"role": "user", "content": "Ana has 2 pens."}
    assert student.render([question]) == "Ana has 2 pens. 3 + 326 July 2024"


@pytest.mark.parametrize("content", ["{{ m['content'] }}", "{{ m['content'] | trim }}"])
def test_a_chat_that_goes_on_ends_as_its_last_message_does(content):
    student = load_student(load_config(overrides=["student=embedded"]))
    student.tokenizer.chat_template = (
        f"{{% for m in messages %}}{content}{{{{ '\n' }}}}{{% endfor %}}"
    )
    begun = [
        {"role": "user", "content": "Ana has 2 pens."},
        {"role": "assistant", "content": "3 + 4 = 7\n"},
    ]
    ids = student.chat_ids(begun, going_on=True)
    assert ids == (*student.encode("Ana has 2 pens.\n"), *student.encode("3 + 4 = 7\n"))
    student.tokenizer.chat_template = "{{ messages[0]['content'] }}"  # the last message is lost
    with pytest.raises(RequestError, match="chat template refuses"):
        student.chat_ids(begun, going_on=True)


def test_the_last_number_of_a_response_that_was_cut_is_no_answer():
    student = load_student(load_config(overrides=["student=embedded"]))
    tasks = load_tasks("embedded", "test", 120)
    found = answer(student, tasks, max_tokens=9)
    texts = [samples[0] for samples in found.responses]
    lucky = [
        i
        for i, task in enumerate(tasks)
        if "####" not in texts[i] and extract(texts[i]) == task.gold
    ]
    assert lucky and not any(found.first[i] for i in lucky)


@pytest.mark.parametrize(
    "kind",
    ["Qwen2TokenizerFast", "LlamaTokenizer"],
)
def test_a_folder_that_names_another_class_is_read_as_its_file_says(kind, tmp_path):
    """For training transformers' own class was taken, which made `314?` of a question."""
    folder = shutil.copytree(PACKAGED, tmp_path / "folder")
    config = read_json(folder / "tokenizer_config.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": kind}))
    expected = load_tokenizer(str(PACKAGED))
    text = "Ana has 314 pens. How many?\n"
    found = load_tokenizer(str(folder))
    assert found(text)["input_ids"] == expected(text)["input_ids"]
    assert (found.eos_token_id, found.chat_template) == (
        expected.eos_token_id,
        expected.chat_template,
    )
    found.save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again"))(text)["input_ids"] == expected(text)["input_ids"]


def test_a_tokenizer_that_loses_text_is_one_sentence(tmp_path):
    folder = shutil.copytree(PACKAGED, tmp_path / "folder")
    file = folder / "tokenizer.json"
    broken = read_json(file)
    broken["decoder"] = {"type": "Strip", "content": "3", "start": 1, "stop": 0}
    file.write_text(json.dumps(broken))
    with pytest.raises(CheckpointError, match="gives back"):
        load_tokenizer(str(folder))


APPLES = "How many apples are in 3 boxes of 14 apples?"
SMALL_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def gpt2(ids):
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids))


def phi3(ids):
    return Phi3ForCausalLM(
        Phi3Config(**SMALL_SHAPE, intermediate_size=48, num_key_value_heads=2, **ids)
    )


OTHERS = {
    "gpt2": (gpt2, {"c_attn", "c_proj", "c_fc"}),
    "phi3": (phi3, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
}


@pytest.fixture(params=list(OTHERS))
def unknown(request, tmp_path):
    """A student of an architecture that models.yaml has none of, and its linear layers' names."""
    make, names = OTHERS[request.param]
    tokenizer = AutoTokenizer.from_pretrained(PACKAGED)
    torch.manual_seed(0)
    ids = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    folder = tmp_path / request.param
    make(ids).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_config(
        overrides=[{"student": "mine", "models": {"mine": {"path": str(folder)}}}]
    ), names


def logits(student):
    ids = torch.tensor([student.prompt_ids(APPLES)])
    with torch.no_grad():
        return student.model(input_ids=ids).logits


def test_lora_is_on_all_linear_layers_of_an_unknown_architecture(unknown, tmp_path):
    config, names = unknown
    student = load_student(config)
    assert set(student.spec.lora.targets) == names
    before = logits(student)
    make_trainable(student.model, student.spec, "lora")
    adapted = own_parameters(student.model, "default")
    found = {key.split(".lora_")[0].rpartition(".")[2] for key in adapted}
    assert found == names
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    student.model.eval()
    changed = logits(student)
    assert (changed - before).abs().max() > 1e-3
    save_adapter(student.model, tmp_path / "adapter")
    fresh = load_student(config)
    load_adapter(fresh.model, tmp_path / "adapter", "default")
    activate(fresh.model, "default")
    torch.testing.assert_close(logits(fresh), changed)
    wrong = {
        "models": {"mine": {"path": config.models["mine"].path, "lora": {"targets": ["q_porj"]}}}
    }
    with pytest.raises(ConfigError, match="q_porj") as caught:
        load_student(load_config(overrides=[{"student": "mine"}, wrong]))
    assert min(names) in str(caught.value)


def test_a_gguf_file_is_a_model_that_transformers_reads(tmp_path, monkeypatch):
    path = tmp_path / "Tiny.gguf"
    path.write_bytes(b"GGUF")
    found, folder = find_model(str(path), load_config())
    assert folder is None and found["student"] == "tiny-gguf"
    assert student_module.place(str(path)) == (str(tmp_path), {"gguf_file": "Tiny.gguf"})
    monkeypatch.setattr(student_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="gguf"):
        load_student(load_config(overrides=[found]))
    with pytest.raises(ConfigError, match="no folder or GGUF file"):
        find_model(str(tmp_path / "gone.gguf"), load_config())


@pytest.mark.parametrize("method", ["awq", "fp8", "bitsandbytes_8bit"])
def test_weights_in_another_format_say_what_they_are(method, tmp_path):
    folder = saved_llama(tmp_path / "student", "float32")
    shape = read_object(folder / "config.json")
    quantised = {"quant_method": method, "bits": 4}
    if method == "bitsandbytes_8bit":
        quantised = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    write_json(folder / "config.json", shape | {"quantization_config": quantised})
    config, path = with_model(
        str(folder), [], lambda overrides: load_config(overrides=list(overrides))
    )
    with pytest.raises(
        ConfigError, match=rf"student {folder} is quantised by {method.upper()}, .*nf4"
    ) as caught:
        load_student(config, path=path)
    assert "\n" not in str(caught.value)


def test_a_float16_folder_is_computed_as_it_is(tmp_path):
    """By the kernels in float32, which holds its numbers; training all of its weights is
    refused.
    """
    folder = saved_llama(tmp_path / "student", "float16")
    entry = {"path": str(folder), "dtype": "float16", "adapter": "lora"}
    config = load_config(overrides=[{"student": "mine", "models": {"mine": entry}}])
    student = load_student(config, inference=True)
    assert student.model.dtype == torch.float16
    prompt = student.prompt_ids(APPLES)
    [scores] = asyncio.run(student.engine.score([(prompt[:5], prompt[5:])]))
    right = (
        logits(student)[0]
        .float()
        .log_softmax(-1)[4:-1]
        .gather(1, torch.tensor(prompt[5:])[:, None])[:, 0]
    )
    torch.testing.assert_close(torch.tensor(scores), right, rtol=0, atol=0.02)
    with pytest.raises(
        ConfigError, match="dtype is float16, in which updates are lost: use 'lora'"
    ):
        make_trainable(student.model, student.spec, "full")


def test_attention_is_what_the_entry_names_or_a_sentence(tmp_path):
    folder = saved_llama(tmp_path / "student", "float32")

    def load(**keys):
        entry = {"path": str(folder), **keys}
        return load_student(load_config(overrides=[{"student": "a", "models": {"a": entry}}]))

    found = {name: load(attn_implementation=name).model.config for name in ("eager", None)}
    assert [each._attn_implementation for each in found.values()] == ["eager", "sdpa"]
    for keys, said in (
        ({"attn_implementation": "nonsense"}, r"attn_implementation is nonsense, which can't be"),
        ({"attn_implementation": "flash_attention_2"}, r"is flash_attention_2, .*install what it"),
    ):
        with pytest.raises(CheckpointError, match=rf"^models\.a\..*{said}.* or set it to null$"):
            load(**keys)


def test_kernels_that_are_not_here_are_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    flex = StudentModel(path="package", attn_implementation="flex_attention")
    with pytest.raises(ConfigError, match=r"^models\.a\.attn_implementation "):
        check_device("a", "package", flex)
    # An answer needs none of them: such a student answers on a CPU.
    key = "attn_implementation"
    config = load_config(overrides=["student=embedded", f"models.embedded.{key}=flash_attention_2"])
    assert load_student(config, inference=True).spec.attn_implementation is None
    with pytest.raises(CheckpointError, match=f"^models.embedded.{key} "):
        load_student(config)
    with pytest.raises(ConfigError, match="made from scratch: leave it out"):
        student_from_scratch(config, load_student(load_config()).tokenizer)


def saved_llama(folder, dtype):
    """A tiny Llama's folder with the embedded student's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(PACKAGED)
    torch.manual_seed(0)
    shape = LlamaConfig(
        **SMALL_SHAPE,
        intermediate_size=48,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(shape).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


EMBEDDED_ROWS = 169  # of the embedded student's embedding


@pytest.fixture
def folder(tmp_path):
    """A copy of the embedded student, to be damaged."""
    return Path(shutil.copytree(PACKAGED, tmp_path / "student"))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def whole(folder):
    return load_student(load_config(overrides=["student=embedded"]), path=folder)


def refused(folder, *words):
    """It can't be loaded, and why is one sentence that has these words."""
    with pytest.raises(CheckpointError) as caught:
        whole(folder)
    text = str(caught.value)
    assert str(folder) in text and "\n" not in text and len(text) < 400
    for word in words:
        assert word in text, (word, text)


def lose(weights):
    del weights["model.layers.0.self_attn.q_proj.weight"], weights["model.norm.weight"]


FAULTS = {
    "lacks model.layers.0.self_attn.q_proj.weight, model.norm.weight: copy its files": lose,
    "lacks lm_head.weight, model.embed_tokens.weight": lambda weights: weights.pop(
        "model.embed_tokens.weight"
    ),
    "has another shape than config.json says for model.norm.weight": lambda weights: weights.update(
        {"model.norm.weight": torch.ones(128)}
    ),
    "has numbers that are not finite in model.layers.1.mlp.up_proj.weight": lambda weights: weights[
        "model.layers.1.mlp.up_proj.weight"
    ][3, 5].fill_(float("nan")),
    **{
        f"has no place in its config.json for {key}": lambda weights, key=key: weights.update(
            {key: torch.ones(4)}
        )
        for key in (
            "model.layers.2.input_layernorm.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.self_attn.q_norm.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        )
    },
}


@pytest.mark.parametrize("words", FAULTS)
def test_faulty_weights_are_refused(folder, words):
    whole(folder)  # its tied output layer is not missing
    change_weights(folder, FAULTS[words])
    refused(folder, words)


def test_weights_that_change_no_text_are_left_out(folder):
    kept = whole(folder).weights
    keys = (
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "v_head.summary.weight",
        "mtp.norm.weight",
    )
    change_weights(folder, lambda weights: weights.update({key: torch.ones(4) for key in keys}))
    assert whole(folder).weights == kept


@pytest.mark.parametrize("way", ["bin", "shards", "an index that is out of date"])
def test_weights_are_read_however_they_lie(way, folder):
    student = whole(folder)
    file = folder / "model.safetensors"
    if way == "bin":
        torch.save(load_file(file), folder / "pytorch_model.bin")
        file.unlink()
    elif way == "shards":
        file.unlink()
        student.model.save_pretrained(folder, max_shard_size="100KB")
        assert len([*folder.glob("model-*-of-*.safetensors")]) > 2
    else:
        of = {name: "model-00001-of-00002.safetensors" for name in load_file(file)}
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": of})
    assert whole(folder).weights == student.weights


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0]['content'] }}", None])
def test_a_prompt_opens_once(template, folder):
    """Whether the template or the tokenizer puts the token that opens texts."""
    tokenizer = load_tokenizer(str(folder))
    bos = tokenizer.convert_ids_to_tokens(5)
    tokenizer.bos_token, tokenizer.chat_template = bos, template
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 5)]
    )
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    student = whole(folder)
    assert student.tokenizer("Ana")["input_ids"][0] == 5
    assert student.prompt_ids("Ana has 2 pens.").count(5) == 1
    assert student.prompt_ids("Ana has 2 pens.")[0] == 5


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
open(MARK, "w")
class Shape(LlamaConfig):
    model_type = "own"
class Model(LlamaForCausalLM):
    config_class = Shape
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("kind", ["model", "known", "tokenizer", "rlhflow", "qwen-prm"])
def test_code_in_a_folder_never_runs(kind, folder, tmp_path, monkeypatch):
    """transformers asks on stdin whether it may."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda *_: asked.append(1) or "y")
    (folder / "own.py").write_text(OWN_CODE.replace("MARK", repr(str(tmp_path / "ran"))))
    name, more = "config.json", {
        "auto_map": {
            "AutoConfig": "own.Shape", "AutoModel": "own.Model", "AutoModelForCausalLM": "own.Model"
        }
    }  # fmt: skip
    if kind == "tokenizer":
        name, more = "tokenizer_config.json", {
            "auto_map": {"AutoTokenizer": ["own.Words", "own.Words"]}, "tokenizer_class": "Words"
        }  # fmt: skip
    elif kind != "known":
        more["model_type"] = "own"
    write_json(folder / name, read_object(folder / name) | more)
    if kind == "known":  # a kind that transformers has is computed by its own classes
        assert type(whole(folder).model) is LlamaForCausalLM
    elif kind in ("rlhflow", "qwen-prm"):
        with pytest.raises(CheckpointError, match="custom code"):
            load_public(folder, kind, load_config())
    else:
        with pytest.raises((CheckpointError, ConfigError), match="code of its own, which never"):
            whole(folder)
    assert not asked and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "shape, words",
    [
        (T5Config(), r"is an encoder and a decoder \(t5\)"),
        (Qwen2VLConfig(), r"is a model of pictures and text \(qwen2_vl\)"),
        (LlavaConfig(), r"is a model of pictures and text \(llava\)"),
        (ViTConfig(), r"is no causal language model \(vit\)"),
        ({"model_type": "llama9"}, r"is a llama9 model, which transformers .* may be newer"),
    ],
)
def test_other_models_say_what_they_are(folder, shape, words):
    shape = shape if isinstance(shape, dict) else shape.to_diff_dict()
    write_json(folder / "config.json", shape)
    with pytest.raises((CheckpointError, ConfigError), match=words) as caught:
        whole(folder)
    assert "\n" not in str(caught.value)


def test_a_model_and_an_adapter_in_one_folder_are_refused(folder):
    """transformers would lay the adapter over the model, and a run's reference would be without."""
    write_json(folder / "adapter_config.json", {"peft_type": "LORA"})
    entry = {"student": "mine", "models": {"mine": {"path": str(folder)}}}
    for load in (
        lambda: whole(folder),
        lambda: load_student(load_config(overrides=[entry])),
        lambda: find_model(str(folder), load_config()),
    ):
        with pytest.raises(CheckpointError, match="is a model and an adapter: move"):
            load()


def test_what_says_how_to_sample_is_saved_as_it_says_it(folder, tmp_path):
    """Llama 2's file has a temperature without do_sample: it loads, and is not saved."""
    settings = read_object(folder / "generation_config.json") | {"temperature": 0.6, "top_p": 0.9}
    write_json(folder / "generation_config.json", settings)
    student = whole(folder)
    student.model.save_pretrained(tmp_path / "saved")
    saved = read_object(tmp_path / "saved" / "generation_config.json")
    assert (saved["temperature"], saved["top_p"], saved["do_sample"]) == (0.6, 0.9, True)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_what_can_not_be_saved_is_told_before_a_training(command, folder, tmp_path, capsys):
    settings = read_object(folder / "generation_config.json") | {"length_penalty": 2.0}
    write_json(folder / "generation_config.json", settings)
    out = tmp_path / "out"
    assert main(f"{command} --model {folder} --out {out} -q".split()) == 2
    said = capsys.readouterr().err
    assert "can be read and not written" in said and "length_penalty" in said
    assert said.count("\n") == 1 and not [*out.glob("*")]


@pytest.mark.parametrize("token", ["</s>", "1", -1, [1, EMBEDDED_ROWS], True])
def test_an_end_token_that_the_model_has_not_is_refused(folder, token):
    write_json(folder / "generation_config.json", {"eos_token_id": token})
    with pytest.raises(CheckpointError, match=r"eos_token_id .*, and its tokens are 0 to 168"):
        whole(folder)


def test_four_bits_are_read_in_the_folder(folder):
    """All of such weights can't be trained, whatever the entry says."""
    pytest.importorskip("bitsandbytes")
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    AutoModelForCausalLM.from_pretrained(PACKAGED, quantization_config=packed).save_pretrained(
        folder
    )
    student = whole(folder)
    assert student.spec.quantization == "nf4"
    with pytest.raises(ConfigError, match="the student is quantised"):
        make_trainable(student.model, student.spec, "full")
    (folder / "chat_template.jinja").unlink()  # by which it is the embedded student's
    [entry] = find_model(str(folder), load_config())[0]["models"].values()
    assert entry["adapter"] == "lora"


# -- the tokenizer ---------------------------------------------------------------------------------


def test_fetch_says_where_a_model_is(monkeypatch, capsys):
    monkeypatch.setattr(fetch, "from_hub", lambda repository: f"/cache/{repository}")
    assert (
        main(["fetch", "qwen3-0.6b"]) == 0 and "/cache/Qwen/Qwen3-0.6B" in capsys.readouterr().out
    )
