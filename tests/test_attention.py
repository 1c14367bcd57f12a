"""Attention in training on a CPU: the products give what torch's kernel gives, and take its place
for short sequences alone.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.training import attention
from alphazero_llm_trainer.training.attention import NAME, attend_by_length
from alphazero_llm_trainer.training.models import make_trainable
from alphazero_llm_trainer.training.packing import Work, plan
from alphazero_llm_trainer.training.rows import TrainRow


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def padded(rows: int = 3, length: int = 40) -> dict[str, torch.Tensor]:
    """Rows padded on the left, one by most of its length: its first queries see nothing."""
    ids = torch.randint(2, 97, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    return {"input_ids": ids, "attention_mask": mask}


def whole() -> dict[str, torch.Tensor]:
    """Rows without a mask, which only the causal order hides."""
    return {"input_ids": padded()["input_ids"]}


def packed() -> dict[str, torch.Tensor]:
    """Three responses of one question as a trie under an additive mask."""
    prompt = (*range(5, 15),)
    rows = [TrainRow(prompt, (20, 21, *range(30, 30 + more)), (), ()) for more in (3, 9, 14)]
    [made] = plan(rows, Work(1.0, 0.0)).forwards
    assert len(made.tries) == 1
    return made.inputs(LlamaConfig(), torch.float32, "cpu")


def pass_over(model: Any, given: dict[str, torch.Tensor], seen: torch.Tensor) -> list[torch.Tensor]:
    """Logits of the positions that count, and all gradients of a function of them."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(**given).logits
    wanted = logits.float()[seen]
    (wanted * torch.linspace(-1, 1, 97)).sum().backward()
    return [wanted.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("make", [padded, whole, packed])
def test_logits_and_gradients_are_those_of_the_exact_attention(
    model: LlamaForCausalLM, make: Any
) -> None:
    given = make()
    mask = given.get("attention_mask")
    seen = (
        torch.ones_like(given["input_ids"], dtype=torch.bool)
        if mask is None or mask.ndim == 4
        else mask.bool()
    )
    kernel, ours = copy.deepcopy(model), copy.deepcopy(model)
    attend_by_length(ours)
    assert (kernel.config._attn_implementation, ours.config._attn_implementation) == ("sdpa", NAME)
    theirs, found = pass_over(kernel, given, seen), pass_over(ours, given, seen)
    exact = [logits := model(**given).logits[seen]]
    (logits * torch.linspace(-1, 1, 97)).sum().backward()
    exact += [p.grad for p in model.parameters()]
    for own, other, right in zip(found, theirs, exact, strict=True):
        size = right.abs().max()
        # Both round to bfloat16, in different places: neither may be much further from fp32 than
        # the other.
        assert (own - right).abs().max() <= 1.5 * (other - right).abs().max() + 0.005 * size
        assert (own - right).norm() <= 0.03 * right.norm()


def test_the_kernel_is_left_for_short_sequences_under_autocast_alone(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    theirs = attention.sdpa_attention_forward

    def kernel(module: Any, query: torch.Tensor, *rest: Any, **given: Any) -> Any:
        asked.append(query.shape[2])
        return theirs(module, query, *rest, **given)

    monkeypatch.setattr(attention, "sdpa_attention_forward", kernel)
    monkeypatch.setattr(attention, "LONGEST", 40)
    attend_by_length(model)
    model(**padded())  # fp32: the kernel's numbers, to the bit
    assert asked == [40, 40]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(**padded())
        assert asked == [40, 40]
        model(input_ids=torch.ones(1, 41, dtype=torch.long))
    assert asked == [40, 40, 41, 41]


def test_a_row_that_an_additive_mask_hides_all_from_is_finite() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(1, 2, 12, 16, generator=generator) for _ in range(3)]
    mask = torch.full((1, 1, 12, 12), torch.finfo(torch.float32).min).triu(1)
    mask[..., 0, :] = torch.finfo(torch.float32).min
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = attention.attend(torch.nn.Module(), *states, mask, scaling=0.25)
    assert torch.isfinite(found).all()


def test_a_model_made_trainable_attends_so_and_says_nothing_of_it_in_its_folder(
    model: LlamaForCausalLM, tmp_path: Any
) -> None:
    make_trainable(model, StudentModel(path="x"), "full")
    assert model.config._attn_implementation == NAME
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text(encoding="utf-8")
    model.set_attn_implementation("eager")
    make_trainable(model, StudentModel(path="x"), "full")
    assert model.config._attn_implementation == "eager"
