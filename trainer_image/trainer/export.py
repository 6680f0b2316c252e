"""A durable checkpoint as a transformers folder, made in one process and without torch.distributed.

Reads the manifest's items through the verifying restore, so a damaged checkpoint is never exported. Called by
rank 0 when a run is done, or later by hand; the folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from trainer.checkpoint.location import sync_folder
from trainer.checkpoint.manifest import Manifest
from trainer.checkpoint.restore import from_durable
from trainer.data.prepare import PreparedData
from trainer.output import SOURCE_FILE, check_replaceable

WEIGHTS = "model."  # the state's prefix for parameters
_WEIGHTS_FILE = "model.safetensors"
_DTYPES = {"FP32": torch.float32, "FP64": torch.float64}


def export(location: Path, name: str, spec: dict[str, Any], prepared: PreparedData, out_dir: Path) -> None:
    """Write the model of checkpoint `name` to `out_dir`. An equal export that is there already stays.

    Weights keep the precision that they were trained in. Raises CheckpointDamaged, CheckpointMismatch, and
    ConfigError when something else stands at `out_dir`.
    """
    manifest = Manifest.read(location / name)
    source = {
        "checkpoint": name,
        "manifest": manifest.digest,
        "runUid": manifest.run_uid,
        "step": manifest.step,
        "tokens": manifest.scalars.get("tokens"),
        "dataFingerprint": prepared.fingerprint,
    }
    if _is_there(out_dir, source):
        return
    check_replaceable(out_dir)
    model = _empty_model(spec, manifest, prepared)
    from_durable(location, name, {WEIGHTS + key: tensor.detach() for key, tensor in model.named_parameters()})
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = out_dir.parent / f".{out_dir.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(prepared.tokenizer_dir, temporary)
    _write(model, prepared, source, temporary)
    _put(temporary, out_dir)


def _empty_model(spec: dict[str, Any], manifest: Manifest, prepared: PreparedData) -> PreTrainedModel:
    """The model with the embedding rows that were trained; its weights are about to be replaced."""
    shapes = {item.name: item.shape for item in manifest.items}
    rows = shapes.get(f"{WEIGHTS}model.embed_tokens.weight", (prepared.vocabulary_size,))[0]
    end = prepared.train.end_token
    given = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None} | dict(spec["model"]["config"])
    config = AutoConfig.for_model(**(given | {"vocab_size": rows}))
    dtype = _DTYPES[spec["training"]["precision"]]
    config.dtype = dtype
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _write(model: PreTrainedModel, prepared: PreparedData, source: dict[str, Any], folder: Path) -> None:
    config = model.config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    end = prepared.train.end_token
    GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end).save_pretrained(folder)
    tensors = {key: tensor.detach().contiguous() for key, tensor in model.named_parameters()}
    metadata = {"format": "pt"} | {key: str(value) for key, value in source.items()}
    save_file(tensors, folder / _WEIGHTS_FILE, metadata=metadata)
    (folder / _WEIGHTS_FILE).chmod(0o644)  # like its neighbours: a model is there to be read
    size = (folder / _WEIGHTS_FILE).stat().st_size
    (folder / SOURCE_FILE).write_text(json.dumps(source | {"bytes": size}, indent=1) + "\n")
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _is_there(out_dir: Path, source: dict[str, Any]) -> bool:
    try:
        found: dict[str, Any] = json.loads((out_dir / SOURCE_FILE).read_text())
        size = (out_dir / _WEIGHTS_FILE).stat().st_size
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return found == source | {"bytes": size}


def _put(temporary: Path, out_dir: Path) -> None:
    """Give the new folder its name; an older export steps aside first and is removed last."""
    aside = out_dir.parent / f".{out_dir.name}.{os.getpid()}.old"
    shutil.rmtree(aside, ignore_errors=True)
    if out_dir.exists():
        out_dir.rename(aside)
    temporary.rename(out_dir)
    sync_folder(out_dir.parent)
    shutil.rmtree(aside, ignore_errors=True)
