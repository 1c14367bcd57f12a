"""The embedded student's tokenizer: words, single digits and spaced operators, with an exact round
trip.

A step `12 + 7 = 19` and its line end are 8 tokens; the whole vocabulary is derived from the
generator's own templates.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..errors import ConfigError
from .source import Source

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
PIECES = r" ?[A-Za-z]+| [-+*/=] |#### |\d|\n|[.,?$']| "

# System messages mean nothing to a model this small. A question ends with a line end, and so does
# every assistant message that something follows, so that the prompt of a question is exactly
# `question + "\n"`.
CHAT_TEMPLATE = (
    "{%- set shown = messages | rejectattr('role', 'equalto', 'system') | list -%}{%- for message "
    "in shown -%}{{- message['content'] -}}{%- if message['role'] != 'assistant' or ((not "
    "loop.last or add_generation_prompt) and not message['content'].endswith('\\n')) -%}{{- '\\n' "
    "-}}{%- endif -%}{%- endfor -%}"
)


def build_tokenizer(source: Source) -> PreTrainedTokenizerFast:
    """The tokenizer of a source's words, the same on every call.

    Text outside those words gives `<unk>` and never fails. Raises ConfigError where no small
    vocabulary covers the source.
    """
    texts = list(source.vocabulary_texts())
    if not texts:
        raise ConfigError(
            f"problems.source is {source.name} and a student is trained from scratch: its words "
            "don't fit a small vocabulary, so name a student to go on from with --model"
        )
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    pieces = {piece for text in texts for piece, _ in split.pre_tokenize_str(text)}
    vocabulary = {piece: i for i, piece in enumerate([PAD, EOS, UNK, *sorted(pieces)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = split
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
