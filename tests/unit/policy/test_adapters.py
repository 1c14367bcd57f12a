"""Adapters that peft knows: computed beside a base as peft computes them, merged by peft, or
refused by their field.
"""

import asyncio
import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_engine, tiny_llama
from tables import read_json, table
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.sections import LoraConfig as OurLora
from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.engine.vllm_weights import write_adapter
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.learning.models import attach_adapter, save_adapter
from alphazero_llm_trainer.policy.adapters import (
    POLICY,
    activate_adapter,
    fit_lora,
    load_adapter,
    shape_of,
    use_adapter,
)
from alphazero_llm_trainer.policy.folders import write_facts
from alphazero_llm_trainer.policy.student import PACKAGED
from alphazero_llm_trainer.policy.weights import load_tensors, load_weights
from alphazero_llm_trainer.runs.merging import bare_model, merge_adapter, read_back

IDS = (5, 3, 17, 8, 3, 40, 11)


CASES = table("adapters")


PLAIN, FOREIGN = CASES["plain"], CASES["others"] | CASES["never"]


OPTIONS = PLAIN | {name: options for name, (_, options) in FOREIGN.items()}


def base(tied=False, loud=False):
    """A base with a head of its own, or one that shares the embedding's weights; or a loud one: in
    bfloat16 with large logits.
    """
    model = tiny_llama()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    if loud:
        model.lm_head.weight.data *= 10
        model.bfloat16()
    return model


def shipped():
    return AutoModelForCausalLM.from_pretrained(PACKAGED)


def logprobs(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1)


def made(name, folder, model=None):
    """A trained adapter of this name in a folder, as peft writes one; returns what peft's own model
    says with it.
    """
    torch.manual_seed(1)
    own = {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}
    options = dict(OPTIONS[name])
    kind = options.pop("kind", "LoraConfig")
    config = getattr(peft, kind)(**(own | options if kind == "LoraConfig" else options))
    adapted = peft.get_peft_model(base() if model is None else model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape) * 0.2
    adapted.eval().save_pretrained(folder)
    return logprobs(adapted)


def same(folder, expected, **near):
    """The model that was written to this folder says the same."""
    again = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logprobs(again), expected, **(near or {"atol": 1e-4, "rtol": 1e-4}))
    return again


def adapted(folder):
    model = base()
    load_adapter(model, folder, POLICY)
    activate_adapter(model, POLICY)
    return model


@pytest.mark.parametrize("kind", PLAIN)
def test_lora_is_computed_beside_its_base_and_goes_on_as_it_is(kind, tmp_path):
    expected, before = made(kind, tmp_path / "theirs"), logprobs(base())
    assert (expected - before).abs().max() > 0.01
    model = adapted(tmp_path / "theirs")
    torch.testing.assert_close(logprobs(model), expected)
    with use_adapter(model, None):
        torch.testing.assert_close(logprobs(model), before)
    scores = expected[:-1].gather(1, torch.tensor(IDS[1:])[:, None])[:, 0].tolist()
    for native in ("auto", "off"):  # the kernels' own packing, and torch
        engine = tiny_engine(model, native=native)
        [found] = asyncio.run(engine.score([(IDS[:1], IDS[1:])]))
        assert found == pytest.approx(scores, abs=1e-4)
    if kind == "patterns":  # vLLM is told no ranks by layer
        with pytest.raises(ConfigError, match="rank_pattern"):
            write_adapter(model, tmp_path / "vllm")
    # Training goes on from it, beside it a critic that begins as it, and all of it is in the
    # folders that are written.
    spec = shape_of(model, OurLora())
    for name in (POLICY, "value"):
        attach_adapter(model, spec, name)
    for name in (POLICY, "value"):
        with use_adapter(model.eval(), name):
            torch.testing.assert_close(logprobs(model), expected)
        save_adapter(model, tmp_path / name, name)
        for again in (adapted(tmp_path / name), merge_adapter(base(), tmp_path / name)):
            torch.testing.assert_close(logprobs(again), expected)


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("kind", [*PLAIN, *CASES["others"]])
def test_a_merged_folder_says_what_peft_says(kind, tied, tmp_path):
    expected = made(kind, tmp_path / "adapter", base(tied))
    sum_of_both = merge_adapter(bare_model(base(tied)), tmp_path / "adapter")
    sum_of_both.save_pretrained(tmp_path / "merged")
    read_back(tmp_path / "merged", sum_of_both)
    again = same(tmp_path / "merged", expected)
    ends = again.get_input_embeddings().weight, again.get_output_embeddings().weight
    apart = not torch.equal(*ends)
    assert again.config.tie_word_embeddings is (tied and not apart)
    assert apart or tied


def test_a_head_of_its_own_stays_whatever_config_json_says(tmp_path):
    """`tie_word_embeddings: true` over a file with both: transformers reads both."""
    own = base()
    own.config.tie_word_embeddings = True
    own.save_pretrained(tmp_path / "base")

    def load():
        return load_weights(AutoModelForCausalLM, str(tmp_path / "base"))

    model = load()
    for one in (model, bare_model(model)):
        torch.testing.assert_close(logprobs(one), logprobs(own))
    expected = made("lora", tmp_path / "adapter", model)
    merge_adapter(bare_model(load()), tmp_path / "adapter").save_pretrained(tmp_path / "merged")
    assert not same(tmp_path / "merged", expected).config.tie_word_embeddings
    with pytest.raises(CheckpointError, match=r"without its adapters is .* nats from"):
        bare_model(own)  # its configuration was never set right


@pytest.mark.parametrize("kind", [*FOREIGN, "unknown"])
def test_other_kinds_are_one_sentence_with_their_field_and_the_way_out(kind, tmp_path):
    if kind == "unknown":  # peft itself ignores what nobody knows yet, with a warning
        made("lora", tmp_path)
        field, file = "use_xora", tmp_path / "adapter_config.json"
        file.write_text(json.dumps({**read_json(file), field: {"scale": 2}}))
    else:
        field, _ = FOREIGN[kind]
        made(kind, tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"^.*{field}.*adapter_config\.json.*`merge --adapter"
    ):
        load_adapter(base(), tmp_path, POLICY)


@pytest.mark.parametrize("fault", ["lacking", "unexpected", "shape"])
def test_weights_that_do_not_fit_are_no_adapter(fault, tmp_path):
    made("lora", tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[-1]
    one = weights.pop(name)
    if fault == "unexpected":
        weights |= {name: one, name.replace("layers.1", "layers.7"): one.clone()}
    elif fault == "shape":
        weights[name] = torch.cat([one, one], dim=1)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"^.*$"):
        load_adapter(base(), tmp_path, POLICY)
    with pytest.raises(CheckpointError, match=r"^.*$"):
        merge_adapter(base(), tmp_path)


def test_16_bits_are_merged_too_and_a_wrong_sum_is_seen(tmp_path, monkeypatch):
    for dtype in (torch.bfloat16, torch.float16):
        made("whole head", tmp_path / "16", base().to(dtype))
        found = merge_adapter(base().to(dtype), tmp_path / "16")
        assert {p.dtype for p in found.parameters()} == {dtype}
    made("dora", tmp_path / "dora")
    made("lora", tmp_path / "loud", base(loud=True))  # its rounding alone is .2 nats
    merge_adapter(base(loud=True), tmp_path / "loud")
    merge = "peft.tuners.lora.model.LoraModel.merge_and_unload"
    monkeypatch.setattr(merge, lambda self: self.unload())
    for name in ("dora", "loud"):
        with pytest.raises(CheckpointError, match="nats from the model in memory"):
            merge_adapter(base(loud=name == "loud"), tmp_path / name)


def test_the_command_merges_leaves_nothing_half_and_names_the_field(tmp_path, capsys, monkeypatch):
    def merge(name, code=0):
        words = f"merge --model embedded --adapter {tmp_path / name} --out {tmp_path / 'out'}"
        capsys.readouterr()
        assert main(words.split()) == code
        return capsys.readouterr().err

    expected = made("head", tmp_path / "head", shipped())
    capsys.readouterr()
    assert main(f"eval --model {tmp_path / 'head'} --set student=embedded".split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "target_modules" in error and "merge" in error
    with monkeypatch.context() as patch:
        broken = "alphazero_llm_trainer.runs.merging.load_weights"
        patch.setattr(broken, lambda *_, **__: shipped())
        assert "nats from" in merge("head", 2)
    made("prompt", tmp_path / "prompt", shipped())
    error = merge("prompt", 2)
    assert error.count("\n") == 1 and "PROMPT_TUNING" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head", "prompt"]
    merge("head")
    same(tmp_path / "out", expected, atol=1e-3, rtol=1e-3)


def test_without_a_model_an_adapter_is_merged_into_the_base_that_it_names(tmp_path):
    own, adapter = shipped(), tmp_path / "adapter"
    own.model.norm.weight.data *= 1.5
    shutil.copytree(PACKAGED, tmp_path / "base")
    own.save_pretrained(tmp_path / "base")
    expected = made("lora", adapter, own)
    write_facts(adapter, "own", StudentModel(path=str(tmp_path / "base")), adapter=True)
    assert main(f"merge --adapter {adapter} --out {tmp_path / 'out'}".split()) == 0
    same(tmp_path / "out", expected, atol=1e-3, rtol=1e-3)


def test_a_run_that_trained_the_whole_student_is_told_where_it_is(tmp_path, capsys):
    shutil.copytree(PACKAGED, tmp_path / "run" / "student")
    assert main(f"merge --adapter {tmp_path / 'run'} --out {tmp_path / 'out'}".split()) == 2
    assert f"needs no merging: it is {tmp_path / 'run' / 'student'}" in capsys.readouterr().err


def test_an_adapter_in_pytorchs_file_is_read_and_no_code_of_it_runs(tmp_path, capsys):
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    expected, ran = made("lora", adapter, shipped()), tmp_path / "ran"
    file, older = adapter / "adapter_model.safetensors", adapter / "adapter_model.bin"
    torch.save(load_file(file), older)
    file.unlink()
    model = shipped()
    load_adapter(model, adapter, POLICY)
    merge = f"merge --adapter {adapter} --model embedded --out {out}".split()
    assert main(merge) == 0
    same(out, expected, atol=1e-3, rtol=1e-3)

    class Code:
        def __reduce__(self):
            return (Path.touch, (ran,))

    torch.save({"weight": Code()}, older)
    with pytest.raises(CheckpointError, match="adapter"):
        load_tensors(older)
    with pytest.raises(CheckpointError, match="adapter"):
        load_adapter(shipped(), adapter, POLICY)
    shutil.rmtree(out)
    assert main(merge) == 2 and not ran.exists()
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_the_tokenizer_beside_an_adapter_is_the_merged_models(tmp_path):
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    made("lora", adapter, shipped())
    template = "{% for m in messages %}{{ m['content'] }}!{% endfor %}"
    # Alone at first.
    for name in ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PACKAGED / name, adapter / name)
        (adapter / "chat_template.jinja").write_text(template)
        assert main(f"merge --model embedded --adapter {adapter} --out {out}".split()) == 0
        assert (out / "chat_template.jinja").read_text() == template
        assert AutoTokenizer.from_pretrained(out).chat_template == template
        shutil.rmtree(out)


def test_beside_a_mixtures_experts_lora_is_of_linear_layers_and_all_that_is_saved_stays(
    tmp_path,
):
    shape = CONFIG_MAPPING["glm4_moe"](
        vocab_size=61, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape).eval()
    model.model.layers[1].mlp.gate.e_score_correction_bias.normal_()  # a buffer that is saved
    with pytest.raises(ConfigError, match="down_proj"):
        fit_lora(model, OurLora(targets=("down_proj",)), "x")
    attach_adapter(model, fit_lora(model, OurLora(), "x"), POLICY)
    activate_adapter(model, POLICY)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_(std=0.2)
    save_adapter(model, tmp_path / "adapter")
    load_adapter(bare_model(model), tmp_path / "adapter", POLICY)  # no field beyond LoRA's
    whole = merge_adapter(bare_model(model), tmp_path / "adapter")
    whole.save_pretrained(tmp_path / "whole")
    read_back(tmp_path / "whole", whole)
    same(tmp_path / "whole", logprobs(model), atol=1e-5, rtol=1e-5)
