"""A 4-bit student on the CPU, for real: one base with many adapters, exact gradients, merging,
training and resuming.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import tiny_llama
from tables import read_json, read_jsonl
from transformers import AutoModelForCausalLM

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.device import tell_once
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.learning.critic_network import CriticNetwork
from alphazero_llm_trainer.learning.models import (
    RECOMPUTE,
    attach_adapter,
    make_optimizer,
    make_trainable,
    save_adapter,
)
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.policy import adapters
from alphazero_llm_trainer.policy.folders import weights_of
from alphazero_llm_trainer.policy.student import (
    PACKAGED,
    check_device,
    frozen_student,
    load_model,
    load_student,
)
from alphazero_llm_trainer.runs.critic_run import new_critic
from alphazero_llm_trainer.runs.merging import bare_model, merge_adapter

pytest.importorskip("bitsandbytes")

FLAGS = """
    --set student=embedded
    --set models.embedded.quantization=nf4 --set models.embedded.adapter=lora
""".split()
FOUR_BITS = FLAGS[1::2]
SMALL = """
    --set train.method=grpo --num-examples 16 --save-every 8 --eval-size 8
    --set train.questions_per_round=8 --set train.validation_size=8 --set train.keep_best=false
    --set train.rows_per_round=8 --set train.demonstrations=20
    --set train.optimizer.batch_size=5 --set train.optimizer.epochs=2
""".split()
QUESTION, ANSWER = "Ana has 3 pens. She buys 4 more pens.", "3 + 4 = 7"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def config():
    return load_config(overrides=FOUR_BITS)


@pytest.fixture
def student(config):
    return load_student(config)


@pytest.fixture
def adapted(student):
    """A student with an adapter that changes something."""
    make_trainable(student.model, student.spec, "lora")
    randomise(student.model, adapters.POLICY, 0)
    student.model.eval()
    return student


def randomise(model, adapter, seed, size=0.03):
    """An adapter that changes something, at about the size that training gives one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapters.own_parameters(model, adapter).items():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * size


def logprobs(model, student):
    """Every next-token log-probability along an answer."""
    ids = torch.tensor([[*student.prompt_ids(QUESTION), *student.encode(ANSWER)]])
    with torch.no_grad():
        return model(ids).logits[0].log_softmax(-1)


def difference(found, expected):
    """The largest difference in nats. Logits span 40 nats here: fp32 sums in another order are 2e-5
    apart.
    """
    return float((found - expected).abs().max())


def engine_scores(student):
    [found] = asyncio.run(
        student.engine.score([(student.prompt_ids(QUESTION), tuple(student.encode(ANSWER)))])
    )
    return found


def storages(model):
    """Where the numbers of a model's base lie."""
    return {p.data_ptr() for name, p in model.named_parameters() if not adapters.is_adapted(name)}


# -- 4 bits ----------------------------------------------------------------------------------------


def test_inference_leaves_a_4_bit_model_differentiable_and_as_it_was(student):
    """On CPUs with AVX512-BF16 bitsandbytes repacks weights at the first inference, and no gradient
    passes them then.
    """
    before = adapters.model_fingerprint(student.model)
    logprobs(student.model, student)
    assert adapters.model_fingerprint(student.model) == before
    plain = bare_model(student.model)
    ids = torch.tensor([student.prompt_ids(QUESTION)])
    gradients = []
    for model in (student.model, plain):
        embedded = model.get_input_embeddings()(ids).detach().requires_grad_(True)
        model(inputs_embeds=embedded).logits.logsumexp(-1).sum().backward()
        gradients.append(embedded.grad)
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_merging_is_exact_and_the_folder_is_plain(adapted, tmp_path):
    trained = logprobs(adapted.model, adapted)
    save_adapter(adapted.model, tmp_path / "adapter")
    merge_adapter(bare_model(adapted.model), tmp_path / "adapter").save_pretrained(tmp_path)
    assert "quantization_config" not in read_json(tmp_path / "config.json")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {p.dtype for p in plain.parameters()} == {torch.float32}
    # 4-bit kernel and fp32 rounding included
    assert difference(logprobs(plain, adapted), trained) < 5e-5
    # Against the 4-bit base's own numbers with the adapter beside them, unmerged, in fp64.
    exact = bare_model(adapted.model, torch.float32)
    adapters.load_adapter(exact, tmp_path / "adapter", adapters.POLICY)
    adapters.activate_adapter(exact, adapters.POLICY)
    found, expected = (logprobs(model.double(), adapted) for model in (plain, exact))
    assert difference(found, expected) < 1e-5
    # And the 4-bit model is as it was.
    torch.testing.assert_close(logprobs(adapted.model, adapted), trained)
    # A merge into the weights before quantisation is another model.
    other = load_student(load_config(overrides=["student=embedded"])).model
    assert difference(logprobs(merge_adapter(other, tmp_path / "adapter"), adapted), trained) > 0.1
    rounded = merge_adapter(bare_model(adapted.model, torch.bfloat16), tmp_path / "adapter")
    assert {p.dtype for p in rounded.parameters()} == {torch.bfloat16}


def test_an_adapter_comes_back_exactly_and_knows_its_base(adapted, config, tmp_path):
    save_adapter(adapted.model, tmp_path)
    again, trained = load_student(config, path=tmp_path), logprobs(adapted.model, adapted)
    assert torch.equal(logprobs(again.model, again), trained)
    assert adapters.model_fingerprint(again.model) == adapters.model_fingerprint(adapted.model)
    assert adapters.model_fingerprint(again.model) != adapters.model_fingerprint(again.model, None)
    along = trained[len(adapted.prompt_ids(QUESTION)) - 1 : -1]
    along = along.gather(1, torch.tensor(adapted.encode(ANSWER))[:, None])[:, 0]
    assert engine_scores(again) == pytest.approx(along.tolist(), abs=1e-4)
    # Training goes on from it.
    trainable = make_trainable(again.model, again.spec, "lora").eval()
    assert torch.equal(logprobs(trainable, again), trained)
    assert all("lora_" in name for name, p in trainable.named_parameters() if p.requires_grad)
    # The adapter knows that its base was loaded in 4 bits.
    plain = load_config(overrides=["student=embedded"])
    assert load_student(plain, path=tmp_path).spec.quantization == "nf4"


def test_all_weights_under_an_adapter_are_not_trained_and_a_cut_one_is_refused(tmp_path, capsys):
    config = load_config(overrides=["student=embedded", "models.embedded.adapter=lora"])
    student, adapter = load_student(config), tmp_path / "adapter"  # without 4 bits
    save_adapter(make_trainable(student.model, student.spec, "lora"), adapter)
    flags = f"--model {adapter} --set models.embedded.adapter=full --checkpoint-dir {tmp_path}"
    assert train_main([*SMALL, "--set", "student=embedded", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert "folder is a LoRA adapter" in error and error.count("\n") == 1
    assert [*tmp_path.iterdir()] == [adapter]
    os.truncate(adapter / "adapter_model.safetensors", 5000)
    with pytest.raises(CheckpointError, match="can't be loaded over this student"):
        load_student(config, path=adapter)
    (adapter / "base.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"has a broken base\.json"):
        load_student(config, path=adapter)


# -- one base --------------------------------------------------------------------------------------


def test_policy_reference_value_and_critic_share_one_base(student, config):
    base, names = storages(student.model), (adapters.POLICY, "value", adapters.CRITIC)
    frozen = frozen_student(student, config, shared=True)
    reference, before = logprobs(student.model, student), engine_scores(frozen)
    make_trainable(student.model, student.spec, "lora")
    networks = {"value": new_critic(student, config, "value")}
    networks[adapters.CRITIC] = CriticNetwork(student.model, student.spec.lora)
    for name, parameter in student.model.named_parameters():
        assert adapters.is_adapted(name) or not parameter.requires_grad
    for model in (student.model, frozen.model.model, *networks.values()):
        assert storages(model) - storages(getattr(model, "score", torch.nn.Identity())) == base
    student.model.eval()
    apart = {}  # by name, a student of its own with the same adapter
    for seed, name in enumerate(names):
        randomise(student.model, name, seed)
        apart[name] = load_student(config).model
        make_trainable(apart[name], student.spec, "lora").eval()
        own = adapters.own_parameters(student.model, name)
        for key, parameter in adapters.own_parameters(apart[name], adapters.POLICY).items():
            parameter.data = own[key.replace(f".{adapters.POLICY}.", f".{name}.")].detach().clone()
    student.engine.set_policy(None, 1)
    with adapters.use_adapter(student.model, None):
        assert torch.equal(logprobs(student.model, student), reference)
    found = {}
    for name in names:
        with adapters.use_adapter(student.model, name):
            found[name] = logprobs(student.model, student)
        assert torch.equal(found[name], logprobs(apart[name], student)), name
    assert not torch.allclose(found[adapters.POLICY], found["value"], atol=1e-2)
    # Outside, the policy's own is active.
    assert torch.equal(logprobs(student.model, student), found[adapters.POLICY])
    assert engine_scores(frozen) == pytest.approx(before, abs=1e-6)
    asked = student.prompt_ids(QUESTION)
    with torch.no_grad():
        for name, own in networks.items():
            hidden = apart[name].base_model(torch.tensor([asked])).last_hidden_state
            own.score.weight.fill_(0.01)
            values = own([TrainRow(asked[:-4], asked[-4:], (), ())])
            assert torch.allclose(values[0], own.score(hidden)[0, -5:-1, 0], atol=1e-4)


def test_an_optimiser_of_8_bits_keeps_embeddings_in_32():
    model = tiny_llama()
    optimizer = make_optimizer(model, (), 1e-3, 0.0, eight_bit=True)
    optimizer.check_overrides()
    embeddings = model.get_input_embeddings().weight
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            bits = optimizer.get_config(number, place, group)["optim_bits"]
            assert bits == (32 if parameter is embeddings else 8)


def test_checkpointing_recomputes_under_the_adapter_of_the_forward(adapted):
    model = adapted.model
    attach_adapter(model, adapted.spec.lora, adapters.CRITIC)
    randomise(model, adapters.CRITIC, 1)
    ids, found = torch.tensor([adapted.prompt_ids(QUESTION)]), []
    model.train()
    for recompute in (False, True):
        if recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=RECOMPUTE)
        model.zero_grad(set_to_none=True)
        loss = model(ids).logits.logsumexp(-1).sum()
        with adapters.use_adapter(model, adapters.CRITIC):
            loss = loss + model(ids).logits.square().mean()
        loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append({name: grad.clone() for name, grad in grads.items()})
    for adapter in (adapters.POLICY, adapters.CRITIC):
        assert any(f".{adapter}." in name for name in found[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


# -- the whole path --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qlora")
    assert train_main([*SMALL, *FLAGS, "--checkpoint-dir", str(directory)]) == 0
    return directory / "run-001"


def test_a_run_searches_trains_merges_and_is_evaluated(whole_run, config):
    card = read_json(whole_run / "run.json")
    assert card["adapter"] == "lora" and card["after"]["problems"] == 8
    lines = read_jsonl(whole_run / "metrics.jsonl")
    gaps = [line["engine_logprob_gap"] for line in lines if "engine_logprob_gap" in line]
    assert len(gaps) == 2 and max(gaps) < 1e-4
    state = load_file(whole_run / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert any("lora_B" in name and tensor.any() for name, tensor in state.items())
    # The merged folder is a student too, and answers as the trained one did.
    trained = load_student(config, path=whole_run / "adapter")
    plain = load_student(load_config(overrides=["student=embedded"]), path=whole_run / "student")
    found = logprobs(plain.model, plain)
    assert difference(found, logprobs(trained.model, trained)) < 5e-5
    assert engine_scores(plain) == pytest.approx(engine_scores(trained), abs=1e-4)


# -- what a user trips over ------------------------------------------------------------------------


def test_a_model_of_a_gpus_size_is_refused_without_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = load_config().models["llama-3.2-3b"]
    with pytest.raises(ConfigError, match=r"llama-3\.2-3b .* CUDA .* --model embedded.*cpu=true"):
        check_device("llama-3.2-3b", spec.path, spec)
    check_device("llama-3.2-3b", spec.path, spec.with_values(cpu=True))
    check_device("embedded", str(PACKAGED), spec)


def test_the_mirror_takes_a_gated_model_s_place(monkeypatch, caplog):
    tell_once.cache_clear()  # it is said once a process
    spec = load_config().models["llama-3.2-3b"]
    for token, source in ((None, spec.mirror), ("hf_x", spec.path)):
        monkeypatch.setattr("huggingface_hub.get_token", lambda token=token: token)
        assert weights_of(spec) == source
    assert "unsloth/Llama-3.2-3B-Instruct takes its place" in caplog.text


def test_a_model_that_does_not_come_from_the_hub_says_what_to_do(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("You are trying to access a gated repo.\nMore of it.")

    spec = load_config().models["llama-3.2-3b"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # whatever ran before
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", refuse)
    said = r"access a gated repo\).*/Llama-3\.2-3B-Instruct.*HF_TOKEN.*path=DIR.*path=unsloth/Llama"
    with pytest.raises(CheckpointError, match=said):  # in one line
        load_model(spec.path, spec, "llama-3.2-3b")


# -- merging and uploading -------------------------------------------------------------------------


class Hub:
    """FAKE hub: what `HfApi` is asked to make and to upload."""

    def __init__(self):
        self.made = []
        self.files = {}

    def create_repo(self, repository, **given):
        self.made.append({"repository": repository, **given})
        return f"https://hub/{repository}"

    def upload_folder(self, folder_path, path_in_repo, **_):
        for file in folder_path.iterdir():
            self.files[str(Path(path_in_repo or "") / file.name)] = file.read_bytes()


def test_merge_writes_a_plain_folder_and_uploads_it(whole_run, tmp_path, monkeypatch, capsys):
    hub, out, adapter = Hub(), tmp_path / "merged", whole_run / "adapter"
    monkeypatch.setattr("alphazero_llm_trainer.runs.upload.HfApi", lambda: hub)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    # The adapter knows that its base has 4 bits.
    given = f"merge --model embedded --adapter {adapter} --out {out} --push-to-hub me/student"
    assert main(given.split()) == 0
    assert "uploaded to" in capsys.readouterr().out
    assert hub.made == [{"repository": "me/student", "private": True, "exist_ok": True}]
    weights = (whole_run / "student" / "model.safetensors").read_bytes()
    assert hub.files["model.safetensors"] == (out / "model.safetensors").read_bytes() == weights
    assert "quantization_config" not in json.loads(hub.files["config.json"])
    for wrong, said in (
        (f"--out {whole_run}", "is there already"),
        (f"--out {tmp_path / 'x'} --model {out}", "trained over other weights"),
    ):
        assert main(["merge", *FLAGS, *f"--adapter {adapter} {wrong}".split()]) == 2
        assert said in capsys.readouterr().err


def test_sft_goes_on_in_4_bits(config, tmp_path):
    flags = f"""
        --model {PACKAGED} --out {tmp_path} --eval-size 8 --set train.demonstrations=24
        --set train.validation_size=8 --set train.sft_steps=6 --set train.micro_batch=8
        --set train.optimizer.learning_rate=5e-3
    """
    assert main(["sft", *FLAGS, *flags.split()]) == 0
    manifest = read_json(tmp_path / "manifest.json")
    assert manifest["adapter"] == "lora" and manifest["steps"] == 6
    assert manifest["test_before"]["problems"] == manifest["test_greedy"]["problems"] == 8
    trained = engine_scores(load_student(config, path=tmp_path / "adapter"))
    plain = load_student(load_config(overrides=["student=embedded"]), path=tmp_path)
    # The merged folder is the trained student, and training moved it.
    assert engine_scores(plain) == pytest.approx(trained, abs=1e-3)
    assert engine_scores(load_student(config)) != pytest.approx(trained, abs=1e-2)
