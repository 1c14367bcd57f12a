"""Loading a student: model, tokenizer and the engine over them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel
from transformers import logging as transformers_logging

from ..config import Config
from ..errors import CheckpointError, ConfigError, EngineError
from ..sections import StudentModel
from .chat import Chat
from .inprocess import InProcessEngine

PACKAGED = Path(__file__).parent.parent / "assets" / "student"


@dataclass(slots=True)
class Student(Chat):
    """A policy that can be searched: `model`, its `tokenizer` and the `engine` over them.

    `system_prompt` opens the chat of every prompt (the embedded student's template leaves it out).
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    engine: InProcessEngine
    spec: StudentModel
    system_prompt: str | None = None


def resolve_name(config: Config, name: str | None = None) -> str:
    """`name`, or the configured one, with `auto` resolved: Llama 3.2 3B where CUDA is there, else the embedded one."""
    chosen = config.student if name is None else name
    if chosen == "auto":
        return "llama-3.2-3b" if torch.cuda.is_available() else "embedded"
    if chosen not in config.models:
        raise ConfigError(f"student is {chosen!r}: choose one of {', '.join(['auto', *config.models])}")
    return chosen


def load_student(
    config: Config, name: str | None = None, path: Path | None = None, system_prompt: str | None = None
) -> Student:
    """The student `name` (default: the configured one), with the weights of the folder `path` when one is given.

    Raises:
        ConfigError: no such student, or its weights need a device that isn't there.
        CheckpointError: the folder has no readable model.
    """
    name = resolve_name(config, name)
    spec = config.models[name]
    if spec.path == "package":
        limit_threads()
    folder = path if path is not None else (PACKAGED if spec.path == "package" else None)
    if folder is not None and not (folder / "config.json").is_file():
        raise CheckpointError(f"student folder {folder} has no config.json: name a folder that `train` or `sft` wrote")
    transformers_logging.disable_progress_bar()
    source = str(folder) if folder is not None else spec.path
    model = load_model(source, spec)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise CheckpointError(f"student {source} has no readable tokenizer: copy its tokenizer files there") from error
    return make_student(name, model, tokenizer, spec, config, system_prompt)


def limit_threads() -> None:
    """One torch thread for a model as small as the embedded student, unless OMP_NUM_THREADS says otherwise.

    It gains little from a second thread, and on a busy machine it loses twentyfold: the threads wait for each other.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def make_student(
    name: str, model: PreTrainedModel, tokenizer: Any, spec: StudentModel, config: Config, system_prompt: str | None
) -> Student:
    """A student over a model that is already in memory."""
    if tokenizer.eos_token_id is None:
        raise EngineError(f"student {name} has a tokenizer without an end-of-sequence token: set eos_token")
    engine = InProcessEngine(
        model, eos_id=tokenizer.eos_token_id, line_end_ids=line_ends(tokenizer), settings=config.engine
    )
    return Student(name, model, tokenizer, engine, spec, system_prompt)


def load_model(source: str, spec: StudentModel) -> PreTrainedModel:
    """The causal language model of a folder or a hub id, in the precision that `spec` names, ready for inference."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"dtype": getattr(torch, spec.dtype)}
    if spec.quantization == "nf4":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=options["dtype"],
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(source, **options)
    except ImportError as error:
        raise ConfigError(
            f"student {source} is quantised and bitsandbytes is missing: install alphazero-llm-trainer[gpu]"
        ) from error
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"student {source} can't be loaded ({reason[:200]}): check the folder, or log in to the hub for a gated model"
        ) from error
    if spec.quantization == "none":
        model.to(torch.device(device))  # type: ignore[arg-type]
    return model.eval()


def line_ends(tokenizer: Any) -> frozenset[int]:
    """The tokens whose text ends a line: where one reasoning step stops."""
    ids = range(len(tokenizer))
    return frozenset(
        i for i, text in zip(ids, tokenizer.batch_decode([[i] for i in ids]), strict=True) if text.endswith("\n")
    )
