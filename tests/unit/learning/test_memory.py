"""The forecast of memory against real models, engines and autograd."""

import json
import shutil

import pytest
import torch
from support import STEP_ENDS, VOCABULARY, grpo_config
from tables import CHECKOUT
from transformers import LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.config.load import load_config, load_training
from alphazero_llm_trainer.config.sections import LoraConfig, ModelShape
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.learning.methods.registry import method_of
from alphazero_llm_trainer.learning.models import make_trainable
from alphazero_llm_trainer.learning.size import rows_of_a_forward
from alphazero_llm_trainer.policy import folders
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.runs import start
from alphazero_llm_trainer.runs.memory import GIB, NF4_BYTES, Counts, bytes_of_a_layer, forecast
from alphazero_llm_trainer.runs.start import find_shape

SIZES = {"layers": 3, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 256}
WORDS = {"vocabulary": VOCABULARY, "tied": True}
SHAPE = ModelShape(**SIZES, **WORDS)


def llama(shape=SHAPE, dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def configured(*overrides):
    """A configuration with a student `tiny`, trained whole in fp32 unless overridden."""
    student = {"path": "nowhere", "adapter": "full", "dtype": "float32", "shape": SIZES | WORDS}
    base = {"models": {"tiny": student}, "student": "tiny", "rewards": {"use_student_model": False}}
    return grpo_config([base, "engine.native=off", "engine.max_context=256", *overrides])


def of_tiny(config, cuda=False, **more):
    return forecast(
        config, method_of(config.train.method), config.models["tiny"], SHAPE, cuda, **more
    )


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_to_the_byte(tied):
    shape, config = SHAPE.model_copy(update={"tied": tied}), configured()
    weights = bytes_of(llama(shape).parameters())
    assert Counts.of(shape, LoraConfig()).whole * 4 == weights
    made = forecast(config, method_of(config.train.method), config.models["tiny"], shape, False)
    assert (made.weights, made.trained) == (weights, 2 * weights)  # and Adam's two moments


def test_the_engine_holds_what_is_forecast():
    config = configured("engine.cache_tokens=2000", "engine.max_batch=48", "search.max_tokens=100")
    engine = InProcessEngine(llama().eval(), eos_id=1, step_ends=STEP_ENDS, settings=config.engine)
    # 48 rows of 150 tokens: what a layer's attention reads.
    read = 48 * 150 * bytes_of([engine.tree.states[0, 0]])
    kept = bytes_of([engine.tree.states, engine.tree.next_logprobs]) + read
    assert 0.5 * kept < of_tiny(config, prompt=50).search < 2 * kept


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """A real NF4 student with LoRA, and its configuration."""
    pytest.importorskip("bitsandbytes")
    folder = tmp_path_factory.mktemp("nf4")
    shape = SHAPE.model_copy(update={"vocabulary": 192})  # the tokenizer has 169
    llama(shape, torch.bfloat16).save_pretrained(folder)
    for file in PACKAGED.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)
    given = {"path": str(folder), "adapter": "lora", "quantization": "nf4", "dtype": "bfloat16"}
    config = configured({"models": {"tiny": given}}, "engine.cache_tokens=1024")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "multiplies", lambda dtype: True)  # as a CUDA device does
        student = load_student(config)
    return config, shape, make_trainable(student.model, student.spec, "lora")


def test_four_bit_weights_and_adapters_are_counted(quantised):
    config, shape, model = quantised
    packed, other, trained = 0, 0, 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if parameter.requires_grad:
            trained += bytes_of([parameter])
        elif state is not None:
            packed += bytes_of([parameter, state.absmax, state.state2.absmax])
        else:
            other += bytes_of([parameter])
    made = forecast(config, method_of(config.train.method), config.models["tiny"], shape, True)
    # Blocks of 256 scales are rounded up, which shows at this size; code books don't at a real one.
    assert made.weights == pytest.approx(1.06 * (packed + other), rel=0.01)
    assert Counts.of(shape, config.models["tiny"].lora).adapters * 4 == trained


def test_widened_weights_leave_nothing_of_a_4_bit_model_s_file(tmp_path, monkeypatch):
    llama(SHAPE, torch.bfloat16).save_pretrained(tmp_path)
    given = {"path": str(tmp_path), "adapter": "lora", "quantization": "nf4", "dtype": "bfloat16"}
    config = configured({"models": {"tiny": given}})
    counts = Counts.of(SHAPE, config.models["tiny"].lora)
    for wide, rest in ((False, counts.whole * 2), (True, counts.other * 4)):
        monkeypatch.setattr(start, "widens", lambda *_, wide=wide: wide)
        monkeypatch.setattr(start, "device_memory", lambda: ("cpu", 1 << 40, 1 << 40))
        fit = start.fit_of(config)
        assert fit[0].weights == counts.linear * NF4_BYTES + rest


def kept_a_token(model, rows=4, length=64):
    """Bytes that autograd keeps of a token for the backward pass, a layer of the backbone,
    parameters left out; embedding and last norm are in it, a few in a hundred.
    """
    tokens = torch.randint(2, VOCABULARY, (rows, length))
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0  # padding, as in a minibatch of unequal prompts
    owned = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept = {}  # by address, held so that no other tensor gets it

    def pack(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.model(input_ids=tokens, attention_mask=mask, use_cache=False)
    sizes = [tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in owned]
    return sum(sizes) / (rows * length * SHAPE.layers)


def test_activations_are_those_that_autograd_keeps(quantised):
    def layer(shape, lora, width, adapted):
        return bytes_of_a_layer(shape, Counts.of(shape, lora), lora, width, adapted, False)

    model = llama().train().requires_grad_(True)
    assert layer(SHAPE, LoraConfig(), 4, False) == pytest.approx(kept_a_token(model), rel=0.08)
    config, shape, model = quantised
    model.train()
    kept = kept_a_token(model)
    model.eval()
    assert layer(shape, config.models["tiny"].lora, 2, True) == pytest.approx(kept, rel=0.25)


def test_less_is_forecast_for_what_saves_memory():
    def peak(*overrides):
        batch = ("train.optimizer.batch_size=64", "train.gradient_checkpointing=off")
        made = of_tiny(configured(*batch, *overrides), cuda=True)
        return made.trained + made.update

    assert peak("train.micro_batch=1") < peak("train.micro_batch=8") < peak()
    assert peak("train.gradient_checkpointing=on") < peak()
    assert peak("train.optimizer.name=adamw_8bit") < peak("train.optimizer.name=adamw")
    assert peak("search.max_tokens=20") < peak()
    assert peak("train.method=ppo") > peak()
    # GRPO measures PRE where its advantages are made of it, and has the frozen student beside it
    # then.
    measured = "rewards.use_student_model=true"
    assert peak(measured, "train.reward=combined") > peak(measured) == peak()


def test_the_shape_of_a_folder_is_read(tmp_path):
    def read():
        config = load_config(
            overrides=[{"student": "mine", "models": {"mine": {"path": str(tmp_path)}}}]
        )
        return find_shape(config, config.models["mine"])

    assert read() is None
    llama().save_pretrained(tmp_path)
    assert read() == SHAPE
    (tmp_path / "config.json").write_text("[1]")
    assert read() is None
    # A family that calls a width otherwise (OPT's ffn_dim) has no shape, and no traceback.
    other = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 50272,
        "ffn_dim": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps(other))
    assert read() is None


def test_a_forward_on_a_cpu_takes_what_two_gibibytes_hold():
    embedded, smollm2 = (3, 128, 384), (30, 576, 1536)
    assert rows_of_a_forward(20, 256, *embedded) == 20
    found = {batch: rows_of_a_forward(batch, 352, *smollm2) for batch in (16, 20, 7, 1)}
    assert found == {16: 4, 20: 4, 7: 1, 1: 1}


@pytest.mark.parametrize("size", [8, 16, 24, 80])
def test_a_preset_fits_its_gpu_and_the_guide_says_how(size):
    config = load_training(f"gpu_{size}gb", [{"engine": {"backend": "vllm"}}])
    spec = config.models[config.student]
    assert spec.shape is not None and config.problems.source == "gsm8k"
    peak = (
        forecast(
            config, method_of(config.train.method), spec, spec.shape, cuda=True, memory=size * GIB
        ).peak
        / GIB
    )
    assert peak < 0.9 * size
    guide = (CHECKOUT / "docs" / "guides" / "gpu.md").read_text()
    assert f"| `gpu_{size}gb` | `{config.student}` | {peak:.1f} GiB |" in guide
