"""Loading a student: model, tokenizer and the engine over them."""

from __future__ import annotations

import copy
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..config.hub import ask_hub_or_cache
from ..config.load import Config, resolve_name
from ..config.sections import StudentModel
from ..engine.completions import BaseModelEngine, CompletionEngine
from ..engine.device import GIB, device_memory, tell_once, within_memory
from ..engine.inprocess import InProcessEngine
from ..engine.masks import FLEX
from ..engine.protocol import Engine
from ..engine.step_ends import step_ends
from ..errors import AlphaZeroError, CheckpointError, ConfigError, EngineError
from ..types import NOTHING, Facts, Opening, Task, TokenIds
from .adapters import (
    BASE,
    POLICY,
    START,
    AdapterView,
    activate_adapter,
    fit_lora,
    load_adapter,
    model_fingerprint,
    shape_of,
)
from .chat import Chat
from .folders import (
    ADAPTER_CONFIG,
    GGUF,
    HUB_ID,
    INSTALL_GGUF,
    PACKAGED,
    SMALL,
    TEMPLATE,
    advise_one,
    check_folder,
    read_note,
    stored_bytes,
    trains_widened,
    weights_of,
    why_not_loaded,
)
from .kernel_model import read_kernel_model
from .weights import load_weights, widen_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Its import tells of kernels that a CPU could have.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
SMALL_BYTES = 64 << 20  # weights that one thread computes best
CPU_BYTES = 1 << 30  # weights that a CPU is trusted with unless `cpu` says more
# What two classes must read alike, and a tokenizer give back as it stands, but for letters that its
# vocabulary lacks.
TEXTS = (
    "314 + 25 = 339\n",
    "Ana has 2 pens.\n\nShe buys 1,250 more: 20%?\n",
    "Äpfel für 3 €, 漢字\n",
)
# What a generation configuration may ask of samples beside a temperature and a nucleus, and where
# it asks for nothing.
UNUSED: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "sequence_bias": {},
    "guidance_scale": 1.0,
    "stop_strings": [],
}
QUESTION = "How many apples are in 3 boxes of 14 apples?"  # of the checks at the start


@dataclass(slots=True, repr=False)
class Student(Chat):
    """A policy that can be searched: `model`, its `tokenizer` and the `engine` over them.

    `opening` is what every prompt's chat begins with (the embedded student's template leaves a
    system prompt out). `adapter` is the folder of the adapter that its policy began as, if any;
    `folder` is where its weights are from, unless they are the named student's own.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    engine: Engine
    spec: StudentModel
    opening: Opening = NOTHING
    adapter: Path | None = None
    folder: Path | None = None

    def __repr__(self) -> str:
        count, facts = self.model.num_parameters(), self.engine.facts
        return f"Student {self.title}: {count:,} parameters, engine {facts['backend']}"

    @property
    def title(self) -> str:
        """What to call it before a user."""
        return self.name if self.folder is None else str(self.folder)

    @property
    def weights(self) -> str:
        """A hash of the weights."""
        return model_fingerprint(self.model)

    def solution_ids(self, task: Task) -> tuple[TokenIds, TokenIds]:
        """A demonstration's prompt and solution as tokens, the end token at its end."""
        question = task.problem.question
        return self.prompt_ids(question), self.turn_ids(
            question, task.solution or "", self.engine.eos_id
        )


def load_student(
    config: Config,
    path: Path | None = None,
    opening: Opening = NOTHING,
    inference: bool = False,
    bare: bool = False,
    trained: bool = True,
) -> Student:
    """The configured student, with the weights of the folder `path` when one is given.

    A folder with an adapter is the student's own weights under that adapter; `bare` leaves it out.
    `opening` is of its chats. `inference` says that nothing will be trained and no other network is
    asked: no adapter is fitted to the model then, and products in bfloat16 aren't compared with the
    model's own. Nothing is `trained` with critics either: weights are widened
    (`folders.trains_widened`) for a training alone.

    Raises:
        ConfigError: no such student, or its weights need a device that isn't there.
        CheckpointError: the folder has no readable model, its weights or its tokenizer are not
            that model's, or it couldn't be written after a training.
    """
    name = resolve_name(config)
    if config.engine.backend == "openai":
        raise ConfigError(
            f"engine.backend is openai and student {name} has to be here for this: name its folder "
            "or hub id with --model, without --base-url"
        )
    spec = config.models[name]
    if spec.path in SMALL and (path is None or stored_bytes(str(path)) < SMALL_BYTES):
        limit_threads()
    if path is not None:
        check_folder(path)
    adapter = path if path is not None and (path / ADAPTER_CONFIG).is_file() else None
    folder = path if adapter is None else None
    # Of its base: the fingerprint of the `weights` and the `quantization`; other people's adapters
    # have no such file.
    base = {} if adapter is None else read_note(adapter, BASE)
    if "quantization" in base:
        spec = spec.with_values(quantization=base["quantization"])
    if folder is None and spec.path == "package":
        folder = PACKAGED
    if folder is None and spec.path == "scratch":
        raise CheckpointError(
            f"student {name} has no weights yet: train it with sft --source NAME --model {name}, "
            "then name its folder with --model"
        )
    source = str(folder) if folder is not None else weights_of(spec)
    if HUB_ID.fullmatch(source) and not Path(source).exists():
        ask_hub_or_cache()
    spec = without_cuda(spec) if inference else spec
    check_device(name, source, spec)
    wide = trained and not (inference or bare) and trains_widened(config, spec)
    own = inference and adapter is None
    model: Any = read_kernel_model(source, spec, config.engine) if own else None
    model = model or load_model(source, spec, name, wide)
    if getattr(model, "is_loaded_in_4bit", False):  # as the folder has it, whatever the entry says
        spec = spec.with_values(quantization="nf4")
    tokenizer = own_tokenizer(source, adapter)
    if adapter is None and not inference:
        spec = spec.with_values(lora=fit_lora(model, spec.lora, name))
    if adapter is not None:
        if "weights" in base and base["weights"] != model_fingerprint(model, None):
            raise CheckpointError(
                f"adapter {adapter} was trained over other weights than student {name} has: name "
                "its student with --model, or its base with --set models.NAME.path"
            )
        if not bare:
            load_adapter(model, adapter, POLICY)
            activate_adapter(model, POLICY)
            spec = spec.with_values(lora=shape_of(model, spec.lora))
    student = make_student(name, model, tokenizer, spec, config, opening, source)
    student.adapter, student.folder = adapter, path
    prompt = student.prompt_ids(QUESTION)  # a chat template that takes no question says so now
    if not inference:
        from .backend import check_rounding

        check_rounding(student.engine, model, prompt)
        check_saves(student)
    return student


def check_saves(student: Student) -> None:
    """Raise CheckpointError where a student's configurations or tokenizer, which were read, can't
    be written: a training would tell at its end.
    """
    model = student.model
    with tempfile.TemporaryDirectory() as place:
        try:
            for part in (model.config, model.generation_config, student.tokenizer):
                if part is not None:
                    part.save_pretrained(place)
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(
                f"student {student.title} can be read and not written "
                f"({' '.join(str(error).split())[:200]}): mend its config.json, "
                "generation_config.json or tokenizer_config.json"
            ) from error


def own_tokenizer(source: str, adapter: Path | None) -> Any:
    """The tokenizer of a model's `source`, or the one beside an adapter of it, where that has one;
    so with its chat template. Its padding token is its end token where it has none.
    """
    if adapter is not None and (adapter / "tokenizer_config.json").is_file():
        source = str(adapter)
    tokenizer = load_tokenizer(source)
    if adapter is not None and (adapter / TEMPLATE).is_file():
        tokenizer.chat_template = (adapter / TEMPLATE).read_text(encoding="utf-8")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file.

    What tokenizer.json says counts, where there is such a file: the class that a folder names is
    taken only where it reads texts alike. Some folders name another model's.

    Raises CheckpointError where there is none, or it doesn't give back a text that it read.
    """
    folder, options = find_pretrained(source)
    try:
        chosen = choose_tokenizer(folder, options)
        backend = getattr(chosen, "backend_tokenizer", None)
        if backend is not None and not backend.get_vocab(with_added_tokens=False):
            raise ValueError("its vocabulary is empty")
    except Exception as error:
        fix = "copy its tokenizer files there"
        if "custom code" in str(error):
            fix = (
                "its class is code of its own, which never runs here; where tokenizer.json says "
                "all, take auto_map out of tokenizer_config.json"
            )
        raise CheckpointError(f"student {source} has no readable tokenizer: {fix}") from error
    for text in TEXTS[:2]:
        ids, back = read_ids(chosen, text)
        if chosen.unk_token_id not in ids and back != text:
            raise CheckpointError(
                f"student {source}'s tokenizer reads {text!r} and gives back {back!r}: copy "
                "tokenizer.json and tokenizer_config.json of its model there again"
            )
    return chosen


def choose_tokenizer(folder: str, options: Facts) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file. Whose `find_pretrained` they are."""
    from transformers import PreTrainedTokenizerFast

    own: Any = None
    if not options and has_file(folder, "tokenizer.json"):
        own = PreTrainedTokenizerFast.from_pretrained(folder)
        if (
            read_note(Path(folder), "tokenizer_config.json").get("tokenizer_class")
            == "TokenizersBackend"
        ):
            return own  # its class says no more
    from transformers import AutoTokenizer  # seconds

    chosen: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
    # "" is read as the token that opens texts, where there is one.
    if own is None or (
        own("")["input_ids"] == chosen("")["input_ids"]
        and all(read_ids(own, text) == read_ids(chosen, text) for text in TEXTS)
    ):
        return chosen
    if own.eos_token is None:
        own.eos_token = chosen.eos_token
    return own


def read_ids(tokenizer: Any, text: str) -> tuple[list[int], str]:
    """The token ids of `text`, and their text."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids, tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def has_file(source: str, name: str) -> bool:
    """Whether a folder, or a hub id as far as it is here, has a file."""
    if Path(source).is_dir():
        return (Path(source) / name).is_file()
    from transformers.utils import cached_file

    return cached_file(source, name, _raise_exceptions_for_missing_entries=False) is not None


def find_pretrained(source: str) -> tuple[str, dict[str, Any]]:
    """Where `from_pretrained` finds a folder, a hub id, or a GGUF file: its first argument, and
    options.
    """
    path = Path(source)
    return (str(path.parent), {"gguf_file": path.name}) if path.suffix == GGUF else (source, {})


def hush_transformers() -> None:
    """No bars of transformers' own about weights that are read and written; downloads keep theirs
    on a terminal.
    """
    from huggingface_hub.utils import enable_progress_bars
    from transformers import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if sys.stderr.isatty():
        enable_progress_bars()


def without_cuda(spec: StudentModel) -> StudentModel:
    """`spec`, where there is no CUDA without its attention's kernels, of which an answer needs
    none.
    """
    attention = spec.attn_implementation or ""
    if torch.cuda.is_available() or not attention.startswith(("flash", "flex")):
        return spec
    return spec.with_values(attn_implementation=None)


def check_device(name: str, source: str, spec: StudentModel) -> None:
    """Raise ConfigError for a quantised model of more than a CPU's size where there is no CUDA
    device, for weights beyond the CPU's memory, and for kernels that aren't here.
    """
    if spec.attn_implementation == FLEX and not torch.cuda.is_available():
        raise ConfigError(
            f"models.{name}.attn_implementation needs a CUDA device to train and there is none "
            "here: set it to null"
        )
    if torch.cuda.is_available():
        return
    size, free = stored_bytes(source), device_memory()[1]
    if size > free:  # there the system would end the process without a word
        raise ConfigError(
            f"student {name} ({source}) has {size / GIB:.1f} GiB of weights and {free / GIB:.1f} "
            "GiB are free: use a smaller student, or free memory"
        )
    if spec.quantization != "none" and not spec.cpu and not 0 < size <= CPU_BYTES:
        raise ConfigError(
            f"student {name} ({source}) needs a CUDA device ({spec.quantization}) and there is "
            "none here: use --model embedded, "
            f"or take the CPU's slowness with --set models.{name}.cpu=true"
        )


def frozen_student(student: Student, config: Config, shared: bool) -> Student:
    """The student as it is now, for good: a copy, or, where training changes adapters alone, a view
    of the same base.
    """
    model: Any
    if not shared:
        model = copy.deepcopy(student.model).eval()
        return make_student(
            student.name, model, student.tokenizer, student.spec, config, student.opening
        )
    if student.adapter is not None:
        load_adapter(student.model, student.adapter, START)
    model = AdapterView(student.model, None if student.adapter is None else START)
    engine: Any
    if isinstance(student.engine, CompletionEngine) and student.adapter is None:
        engine = BaseModelEngine(student.engine)
    else:
        engine = engine_over(model, student, config)
    return Student(student.name, model, student.tokenizer, engine, student.spec, student.opening)


def engine_over(model: Any, student: Student, config: Config) -> InProcessEngine:
    """An engine over another model that reads the student's tokens."""
    engine = student.engine
    return InProcessEngine(
        model,
        eos_id=engine.eos_id,
        eos_ids=engine.eos_ids,
        step_ends=engine.step_ends,
        settings=config.engine,
        unknown=unknown_ids(model, student.tokenizer),
    )


def limit_threads() -> None:
    """One torch thread for a model as small as the embedded student, unless OMP_NUM_THREADS says
    otherwise.

    It gains little from a second thread, and on a busy machine it loses twentyfold: the threads
    wait for each other.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def make_student(
    name: str,
    model: PreTrainedModel,
    tokenizer: Any,
    spec: StudentModel,
    config: Config,
    opening: Opening,
    source: str | None = None,
) -> Student:
    """A student over a model that is already in memory.

    `source` is where the model came from: then `engine.backend` chooses the engine, else it is the
    in-process one.
    """
    if tokenizer.eos_token_id is None:
        raise EngineError(
            f"student {name} has a tokenizer without an end-of-sequence token: set eos_token"
        )
    engine: Any = None  # follows
    student = Student(name, model, tokenizer, engine, spec, opening)
    end = student.turn_end()
    ends: dict[str, Any] = {
        "eos_id": end,
        "eos_ids": end_ids(model, tokenizer, name, end),
        "step_ends": step_ends(tokenizer, config.search.step),
    }
    if source is not None:
        tell_sampling(model, name)
    if source is None or config.engine.backend == "inprocess":
        unknown = unknown_ids(model, tokenizer)
        student.engine = InProcessEngine(model, settings=config.engine, unknown=unknown, **ends)
        return student
    from .backend import check_numerics, start_engine

    student.engine = start_engine(model, source, spec, config, tokenizer, **ends)
    numerics = check_numerics(student.engine, model, student.prompt_ids(QUESTION))
    student.engine.facts |= {"numerics": numerics}
    return student


def tell_sampling(model: Any, name: str) -> None:
    """Say what a model's generation configuration asks of samples that no engine here does: draws
    are from the model's own distribution, whose log-probabilities training needs.
    """
    settings = getattr(model, "generation_config", None)
    asked = {key: getattr(settings, key, None) for key in UNUSED}
    said = [f"{key}={value}" for key, value in asked.items() if value not in (None, UNUSED[key])]
    if said:
        tell_once(
            f"student {name}'s generation_config.json asks for {', '.join(said)}, which is left "
            "out: samples are of the model's own distribution"
        )


def end_ids(model: Any, tokenizer: Any, name: str, end: int) -> frozenset[int]:
    """All tokens that end a response: the tokenizer's, the chat template's `end`, and those of the
    model's generation configuration; where it names others than the template's, that is said.
    Raises CheckpointError for one that the model hasn't.
    """
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    others = named if isinstance(named, list) else [] if named is None else [named]
    words = model.config.get_text_config().vocab_size
    for token in (tokenizer.eos_token_id, end, *others):
        if type(token) is not int or not 0 <= token < words:
            raise CheckpointError(
                f"student {name} ends responses with eos_token_id {token!r} (of its tokenizer, its "
                f"generation_config.json or config.json), and its tokens are 0 to {words - 1}: "
                "name one of these there, or leave it out"
            )
    if end not in (others or [tokenizer.eos_token_id]):
        marks = [tokenizer.decode([i]) for i in (end, *others)]
        tell_once(
            f"student {name}'s chat template ends turns with {marks[0]!r} and its "
            f"generation_config.json names {marks[1:]}: responses end at each, and training "
            "teaches the first"
        )
    return frozenset({tokenizer.eos_token_id, end, *others})


def unknown_ids(model: Any, tokenizer: Any) -> list[int]:
    """The tokens of a model that its tokenizer doesn't have: rows of its embedding that fill it
    up.
    """
    words = model.config.get_text_config().vocab_size
    return sorted({*range(words)} - {*tokenizer.get_vocab().values()})


def load_model(source: str, spec: StudentModel, name: str, wide: bool = False) -> PreTrainedModel:
    """The causal language model of a folder or a hub id, in the precision that `spec` names, ready
    for inference; `wide`: its numbers in float32 (`widen_weights`).
    """
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    hush_transformers()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"dtype": getattr(torch, spec.dtype)}
    if spec.quantization == "nf4":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=options["dtype"],
        )
    if spec.attn_implementation is not None:
        options["attn_implementation"] = spec.attn_implementation
    folder, file = find_pretrained(source)
    if file and find_spec("gguf") is None:
        raise ConfigError(
            f"student {source} is a GGUF file and the package gguf is missing: {INSTALL_GGUF}"
        )
    try:
        if not file:
            check_kind(folder)
        model = load_weights(AutoModelForCausalLM, folder, **options, **file)
    except AlphaZeroError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) and "bitsandbytes" in str(error):
            raise ConfigError(
                f"student {source} is quantised and bitsandbytes is missing: install "
                "alphazero-llm-trainer[gpu]"
            ) from error
        raise CheckpointError(why_not_loaded(name, source, spec, error)) from error
    if not getattr(model, "is_quantized", False):
        with within_memory(
            f"student {source}", "use a smaller one, or models.NAME.quantization=nf4"
        ):
            model.to(torch.device(device))  # type: ignore[arg-type]
    if wide:
        widen_weights(model)
    # Its attention makes a plan for each shape, 0.15 s on an H100, and here shapes seldom recur.
    torch.backends.cuda.enable_cudnn_sdp(False)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # bitsandbytes would repack such a CPU's weights at the first inference: rounded scales,
            # and a product that no gradient passes from then on.
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    return model.eval()


def check_kind(source: str) -> None:
    """Raise ConfigError for a model that is none of transformers' causal language models, or whose
    weights are in an integer or 8-bit format, of which neither a gradient nor a search can be had;
    CheckpointError where there is an adapter beside it.
    """
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING,
        PreTrainedConfig,
        __version__,
    )

    shape, _ = PreTrainedConfig.get_config_dict(source)
    if has_file(source, ADAPTER_CONFIG):
        raise CheckpointError(advise_one(source))
    kind: str = shape.get("model_type", "")
    if kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        what = "no causal language model"
        if getattr(CONFIG_MAPPING[kind], "is_encoder_decoder", False):
            what = "an encoder and a decoder"
        if "vision_config" in shape:
            what = "a model of pictures and text"
        raise ConfigError(
            f"student {source} is {what} ({kind}), and a student is a causal language model of "
            "text: name one of these"
        )
    if kind and kind not in CONFIG_MAPPING:
        own = (
            "has code of its own, which never runs here" if "auto_map" in shape else "may be newer"
        )
        raise ConfigError(
            f"student {source} is a {kind} model, which transformers {__version__} doesn't know; "
            f"it {own}: name a model of a kind that transformers has"
        )
    quantised = shape.get("quantization_config") or {}
    method = quantised.get("quant_method", "bitsandbytes")
    if quantised.get("load_in_8bit"):
        method = "bitsandbytes_8bit"
    if method != "bitsandbytes":
        raise ConfigError(
            f"student {source} is quantised by {method.upper()}, which is neither trained nor "
            "searched here: name the"
            " model that it was made of, with quantization: nf4 in its entry for 4 bits"
        )
