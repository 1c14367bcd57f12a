"""Tiny tokenizers of the kinds that the field's models have (tests/cases/tokenizers.yaml), and
random models that read them.
"""

from __future__ import annotations

import json

import torch
from support import SHAPE
from tables import table
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import processors as post
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

KINDS = table("tokenizers")
SPACE = "\u2581"
CORPUS = [
    "Ana has 2 pens and buys 14 more pens, so she has 2 + 14 = 16 pens. How many pens has she?",
    "First 3 * 4 = 12, then 12 - 5 = 7. So the answer is 7.  x = 7 #### 7 assistant user model",
    "    return 1,250.50 if the total is more than 20%: then stop.",
]
PRE = {
    "prepend": None,
    "metaspace": pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False),
    "always": pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False),
    "replace": pre_tokenizers.Split(" ", "merged_with_previous"),
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
}


def tokenizer_of(kind):
    """The tokenizer of a kind."""
    told = KINDS[kind]
    reads = told["reads"]
    of_bytes = reads == "bytes"
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = PRE[reads] if of_bytes else pre_tokenizers.Metaspace(SPACE)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if of_bytes else []
    trained.train_from_iterator(
        CORPUS * 3, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet)
    )
    model = json.loads(trained.to_str())["model"]
    more = [f"<0x{byte:02X}>" for byte in range(256)] if not of_bytes else []
    lines = ["\n", "\n\n", "\n\n\n", SPACE * 2, SPACE * 4] if told.get("lines") else [SPACE * 2]
    pieces = dict.fromkeys([*told["marks"], *more, *([] if of_bytes else lines), *model["vocab"]])
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in model["merges"]]
    if not of_bytes:
        merges = [(SPACE, SPACE), *merges]
    if told.get("lines"):
        merges = [("\n", "\n"), ("\n\n", "\n"), (SPACE * 2, SPACE * 2), *merges]
    unknown = {} if of_bytes else {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    inner = Tokenizer(models.BPE(vocabulary, merges, **unknown))
    if PRE[reads] is not None:
        inner.pre_tokenizer = PRE[reads]
    if reads == "prepend":
        inner.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
    if reads == "replace":
        inner.normalizer = normalizers.Replace(" ", SPACE)
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if told.get("strips"):
        parts.append(decoders.Strip(" ", 1, 0))
    inner.decoder = decoders.ByteLevel() if of_bytes else decoders.Sequence(parts)
    eats = told.get("eats", [])
    inner.add_special_tokens(
        [AddedToken(mark, rstrip=mark in eats, normalized=False) for mark in told["marks"]]
    )
    if told["bos"] is not None:
        inner.post_processor = post.TemplateProcessing(
            single=f"{told['bos']} $A", special_tokens=[(told["bos"], vocabulary[told["bos"]])]
        )
    names = {"bos_token": told["bos"], "eos_token": told["eos"]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, clean_up_tokenization_spaces=False,
        **{name: value for name, value in names.items() if value},
    )  # fmt: skip
    tokenizer.chat_template = told["template"]
    return tokenizer


def chat_folder(folder, kind, **generation):
    """A folder with a random Llama and a kind's tokenizer; `generation` is of its generation
    configuration.
    """
    tokenizer = tokenizer_of(kind)
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "vocab_size": len(tokenizer)}
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **ids, max_position_embeddings=1024))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if generation:
        file = folder / "generation_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | generation))
    return folder
