"""What needs a CUDA device (`-m gpu`; written without one): 4-bit weights, the engine in bf16,
draws, attention and kernels of the device.
"""

import asyncio
import shutil

import pytest
import torch
from support import tiny_engine
from transformers import LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine import inprocess
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.sampling import DeviceSampler, Special
from alphazero_llm_trainer.learning.packing import plan_rows
from alphazero_llm_trainer.learning.scoring import TOGETHER, Scorer, score_plan
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.policy.student import PACKAGED, load_student

LAYERS = 8
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """Random weights with the embedded student's tokenizer, loaded in 4 bits."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    shape = {
        "num_hidden_layers": LAYERS, "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2816, "vocab_size": 32_000,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True)).to(
        torch.bfloat16
    ).save_pretrained(folder)
    for file in PACKAGED.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)
    model = {"path": str(folder), "adapter": "lora", "quantization": "nf4", "dtype": "bfloat16"}
    return load_student(load_config(overrides=[{"models": {"random": model}, "student": "random"}]))


def test_four_bit_weights_load_on_cuda(student):
    packed = [p for p in student.model.parameters() if getattr(p, "quant_state", None) is not None]
    assert len(packed) == 7 * LAYERS and all(
        p.device.type == "cuda" and p.dtype == torch.uint8 for p in packed
    )
    assert student.engine.tree.states.device.type == "cuda"


def test_the_engine_s_log_probabilities_are_the_library_s_in_bf16(student):
    prompt = tuple(range(5, 45))
    [made] = asyncio.run(
        student.engine.generate([GenerateRequest(prompt, n=4, max_new_tokens=32, seed=3)])
    )
    model = student.model
    for one in made:
        ids = torch.tensor([[*prompt, *one.token_ids]], device="cuda")
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        there = [
            float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(one.token_ids)
        ]
        gaps = [abs(a - b) for a, b in zip(one.logprobs, there, strict=True)]
        assert max(gaps) < 0.25 and sum(gaps) / len(gaps) < 0.03


@pytest.mark.parametrize("memo", [0, inprocess.MEMO_BYTES])
def test_a_replayed_step_gives_what_its_kernels_do_one_by_one(memo, monkeypatch):
    monkeypatch.setattr(inprocess, "MEMO_BYTES", memo)
    model = a_llama()
    requests = [GenerateRequest((5, 6, 7 + i), max_new_tokens=20, seed=i) for i in range(20)]

    def drawn(engine):
        return [(one.token_ids, one.logprobs) for [one] in asyncio.run(engine.generate(requests))]

    engines = {native: tiny_engine(model, native=native) for native in ("auto", "off")}
    right = drawn(engines["off"])
    assert not any(engines["off"].forward.decoder.graphs.values())
    found = drawn(engines["auto"])
    assert any(engines["auto"].forward.decoder.graphs.values())
    assert same(found, right)
    engines["auto"].sleep()
    assert same(drawn(engines["auto"]), right)
    with torch.no_grad():
        model.lm_head.weight *= 1.5
    for engine in engines.values():
        engine.set_policy(None, 1)
    right = drawn(engines["off"])
    assert not same(found, right) and same(drawn(engines["auto"]), right)


def same(found, right):
    """Whether tokens are equal and log-probabilities nearly."""
    return [ids for ids, _ in found] == [ids for ids, _ in right] and all(
        mine == pytest.approx(theirs, abs=1e-3)
        for (_, mine), (_, theirs) in zip(found, right, strict=True)
    )


def test_draws_on_cuda_are_those_on_the_cpu():
    sampler, count, some = DeviceSampler(None), 500, torch.Generator().manual_seed(1)
    table = (4 * torch.randn(64, 32_000, generator=some)).bfloat16().float().log_softmax(-1)
    rows = torch.randint(64, (count,), generator=some).tolist()
    uniforms = torch.rand(count, generator=some, dtype=torch.float64).tolist()
    temperatures = [(0.0, 0.7, 1.0)[i % 3] for i in range(count)]
    special = {i: Special(top_p=0.9, tempered=0.6) for i in range(0, count, 5)}
    right, drawn = (
        sampler.draw(where, rows, temperatures, uniforms, special)
        for where in (table, table.to("cuda"))
    )
    # Where a number falls on a boundary, what `exp` rounds decides.
    assert sum(a != b for a, b in zip(drawn.tokens, right.tokens, strict=True)) <= 5
    assert drawn.logprobs == [table[row, a] for row, a in zip(rows, drawn.tokens, strict=True)]
    assert sampler.top(table.to("cuda"), rows, 8) == sampler.top(table, rows, 8)


def a_llama():
    """Small random layers on the device, in fp32."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}
    shape |= {"head_dim": 64, "intermediate_size": 512, "vocab_size": 1000}
    return LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2)).cuda().eval()


def test_flex_attention_has_the_dense_masks_loss_and_gradients():
    model, some = a_llama(), torch.Generator().manual_seed(2)
    words = torch.randint(5, 1000, (6, 300), generator=some).tolist()
    rows = [TrainRow(tuple(words[0][:200]), tuple(each[:90]), (), ()) for each in words]
    found = []
    for attention in ("sdpa", "flex_attention"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        made = plan_rows(rows, TOGETHER)
        scores = score_plan(Scorer(model), model.config, made, torch.float32, "cuda")
        scores.logprobs.sum().backward()
        found.append((scores.logprobs.detach(), *(p.grad.clone() for p in model.parameters())))
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 0.01 * one.norm()
