"""A model's weights from a folder or the hub: all of them, in their shapes, and numbers; else an
error, never random ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..errors import CheckpointError, StorageError
from ..files import put_in_place

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tensors = dict[str, torch.Tensor]  # by name
NAMED_WEIGHTS = 3  # weights that an error names
# Of weights that config.json has no place for, those that change nothing in what is computed of
# text: layers that guess further tokens, towers of pictures and sound, TRL's value head, and masks
# that older files keep.
BESIDE = re.compile(
    r"(^|\.)(mtp|visual|vision|audio|multi_modal_projector|v_head)"
    r"|\.attn(\.attention)?\.(masked_)?bias$"
)


def load_weights(
    kind: Any, source: str, beside: re.Pattern[str] = BESIDE, **options: Any
) -> PreTrainedModel:
    """`kind.from_pretrained(source, **options)` for one of transformers' auto classes; code in the
    folder doesn't run.

    transformers fills up what a file lacks with random numbers, leaves out what config.json has no
    place for, and tells so in a table on stderr; here both are errors, but for the names that
    `beside` finds.

    Raises:
        CheckpointError: weights are missing, have no place or another shape in the model of
            config.json, or are not finite.
    """
    from transformers import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        # Wrong shapes are taken here, so that the error below can name them.
        model, report = kind.from_pretrained(
            source,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
            **options,
        )
    finally:
        transformers_logging.set_verbosity(verbosity)
    faults = {
        "lacks": sorted(report["missing_keys"]),
        "has another shape than config.json says for": sorted(
            key for key, *_ in report["mismatched_keys"]
        ),
        "has numbers that are not finite in": not_finite(model),
        "has no place in its config.json for": sorted(
            key for key in report["unexpected_keys"] if not beside.search(key)
        ),
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - NAMED_WEIGHTS} more" if len(names) > NAMED_WEIGHTS else ""
            raise CheckpointError(
                f"model {source} {fault} {', '.join(names[:NAMED_WEIGHTS])}{more}: copy its files "
                "there again, or write them anew"
            )
    untie_output(model)
    complete_sampling(model)
    return model


def complete_sampling(model: Any) -> None:
    """Have a model's generation configuration say `do_sample` where it has a temperature or the
    like without it, which transformers reads and doesn't write.
    """
    settings: Any = getattr(model, "generation_config", None)
    if settings is None:
        return
    settings._from_model_config = None  # transformers' own note, which it would write
    try:
        settings.validate(strict=True)
    except ValueError:
        settings.do_sample = True


def untie_output(model: Any) -> None:
    """Say in a model's configuration that its output layer has weights of its own, where it has.

    A file may hold both under `tie_word_embeddings: true`; whatever makes a model of the
    configuration would put the embedding in the layer's place.
    """
    outer = model.get_output_embeddings()
    if outer is not None and outer.weight is not model.get_input_embeddings().weight:
        for shape in (model.config, model.config.get_text_config()):
            shape.tie_word_embeddings = False


def not_finite(model: torch.nn.Module) -> list[str]:
    """The names of the weights with NaN or infinite numbers. Those packed into 4 or 8 bits are not
    looked at.
    """
    # Least and largest are NaN where any number is; unlike `isfinite` they need no memory of the
    # weight's size.
    return [
        name
        for name, weight in model.named_parameters()
        if weight.dtype.itemsize > 1
        and weight.numel()
        and not all(bound.isfinite() for bound in weight.detach().aminmax())
    ]


def widen_weights(model: Any) -> None:
    """Turn a model's half-precision numbers into float32, to be trained where `multiplies_fast`
    says no. `model.stored_dtypes` keeps what each parameter is in its file.
    """
    model.stored_dtypes = {}
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            model.stored_dtypes[name] = parameter.dtype
            parameter.data = parameter.data.float()
    for module in model.modules():
        if hasattr(module, "compute_dtype"):  # of 4-bit layers
            module.compute_dtype = torch.float32


def stored_dtypes(model: Any) -> dict[str, torch.dtype]:
    """The precision in its file of each parameter that is held in another (`widen_weights`)."""
    found: dict[str, torch.dtype] = getattr(model, "stored_dtypes", {})
    return found


# -- tensors in a file of their own ----------------------------------------------------------------


def save_tensors(state: Tensors, path: Path) -> None:
    """Write tensors as a safetensors file, in one move. Raises StorageError where the disk is full
    or a file may not be as large.
    """
    part = path.with_name(path.name + ".part")
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()},
            part,
            {"format": "pt"},
        )
    except SafetensorError as error:  # the library's own for what the operating system refused
        part.unlink(missing_ok=True)
        raise StorageError(
            f"{path} can't be written ({error}): free some space, then go on with --resume"
        ) from error
    put_in_place(part, path)


def load_tensors(path: Path) -> Tensors:
    """The tensors of a file, safetensors or PyTorch's (.bin), of which no code runs.

    Raises CheckpointError where it can't be read, StorageError where its folder is gone.
    """
    try:
        if path.suffix == ".bin":
            tensors: Tensors = torch.load(path, "cpu", weights_only=True)
            return tensors
        return load_file(path)
    except (OSError, SafetensorError, UnpicklingError, RuntimeError) as error:
        if not path.parent.is_dir():
            raise StorageError(
                f"{path.parent} was removed meanwhile: put it back, or start a new run"
            ) from error
        more = "it holds more than tensors" if isinstance(error, UnpicklingError) else error
        raise CheckpointError(
            f"{path} can't be read ({more}): restore it or train again"
        ) from error
