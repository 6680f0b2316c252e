"""Initial weights from a folder of Hugging Face safetensors: checked as a whole before a rank starts, then read by each
rank in the parts that it keeps.

Names, shapes and configuration must be those of the model that the specification describes: what differs is an error
that names it, never a weight that stays random. `check_source` is called while a node prepares itself, `fill_from` by
every rank in place of random weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from trainer.architecture import family_of
from trainer.checkpoint.shards import local_piece
from trainer.errors import ConfigError
from trainer.families import HEAD_WEIGHT
from trainer.parameters import Parameter
from trainer.weights_folder import DTYPES, WeightsFolder
from trainingrun.protocol.source_config import as_given, fix_for, keys_of, same

# Of a transformers config, what decides neither shapes nor numbers, or is the run's own business.
_OURS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "dtype",
        "id2label",
        "initializer_range",
        "label2id",
        "max_position_embeddings",
        "n_ctx",
        "n_positions",
        "name_or_path",
        "pretraining_tp",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "problem_type",
    }
)
_NO_NUMBERS = re.compile(r"(_token_id|dropout|_pdrop|^output_|^return_|^summary_|^_|^chunk_size|^is_)")
# Tables that old files carry beside the weights; they follow from the config.
_TABLES = re.compile(r"(\.rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")


def check_source(folder: WeightsFolder, config: PretrainedConfig) -> None:
    """Whether the folder's model is the one that `config` describes. Raises ConfigError."""
    _check_config(folder, config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    used = set()
    for name, shape in wanted.items():
        stored = folder.tensors.get(_stored_name(folder, name, config))
        if stored is None:
            raise folder.refused(f"it has no tensor {name}, which the model needs", _fix_for_missing(name))
        if stored.shape != shape:
            raise folder.refused(
                f"{stored.name} is {list(stored.shape)} there, but spec.model.config makes it {list(shape)}",
                "give the config of the model in that folder",
            )
        if stored.dtype not in DTYPES:
            raise folder.refused(
                f"{stored.name} is of type {stored.dtype}", f"use weights of type {', '.join(DTYPES)}"
            )
        used.add(stored.name)
    tied = bool(config.tie_word_embeddings)
    extra = [
        name
        for name in folder.tensors
        if name not in used and not _TABLES.search(name) and not (tied and name == HEAD_WEIGHT)
    ]
    if extra:
        raise folder.refused(
            f"it has {len(extra)} tensors that the model has no place for, such as {sorted(extra)[0]}",
            "give the config of the model in that folder",
        )


@torch.no_grad()
def fill_from(folder: WeightsFolder, parameters: Iterable[Parameter], config: PretrainedConfig) -> None:
    """Write the folder's weights into this rank's parameters, in their precision. No communication."""
    for parameter in parameters:
        piece = local_piece(parameter.cut)
        name = _stored_name(folder, parameter.name, config)
        if not piece.region.elements:
            continue
        box = tuple(
            slice(start, start + size)
            for start, size in zip(piece.region.offsets, piece.region.shape, strict=True)
        )
        dims = len(folder.tensors[name].shape)
        if dims == len(box):
            piece.local.copy_(folder.read(name, box))
        else:
            # Where matrices are fused, the state has a dim more than the file, made of its last one.
            same = box[: dims - 1]
            rows = folder.read(name, same)
            whole = rows.view(*rows.shape[:-1], *piece.shape[dims - 1 :])
            piece.local.copy_(whole[(*(slice(None) for _ in same), *box[dims - 1 :])])


def _stored_name(folder: WeightsFolder, name: str, config: PretrainedConfig) -> str:
    """The name in the folder: as the model's, or without its root, as base models are saved."""
    if name in folder.tensors:
        return name
    return name.removeprefix(f"{family_of(config).root}.")


def _fix_for_missing(name: str) -> str:
    if name == HEAD_WEIGHT:
        return "set spec.model.config.tie_word_embeddings to true, if that model's head shares the embedding"
    return "give the config of the model in that folder, or a folder with all of its weights"


def _check_config(folder: WeightsFolder, config: PretrainedConfig) -> None:
    content = folder.config()
    if content.get("model_type") != config.model_type:
        raise ConfigError(
            "spec.model.config.model_type",
            config.model_type,
            f"the model in {folder.uri} is of type {content.get('model_type')!r}",
            fix_for("model_type", None),
        )
    try:
        theirs = AutoConfig.from_pretrained(folder.folder, local_files_only=True).to_dict()
    except (OSError, ValueError, KeyError) as error:
        raise folder.refused(f"its config.json cannot be used: {error}", "copy it anew") from error
    theirs, ours = as_given(theirs), as_given(config.to_dict())
    for key in sorted(theirs.keys() | ours.keys()):
        if key in _OURS or _NO_NUMBERS.search(key) or same(theirs.get(key), ours.get(key)):
            continue
        known = key in keys_of(config.model_type)
        raise ConfigError(
            f"spec.model.config.{key}",
            _shown(ours.get(key)),
            f"the model in {folder.uri} was made with {_shown(theirs.get(key))}",
            fix_for(key, theirs.get(key)) if known else f"use another model: {key} cannot be given",
        )


def _shown(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
