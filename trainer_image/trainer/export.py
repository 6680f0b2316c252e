"""A durable checkpoint as a transformers folder, made in one process and without torch.distributed.

Everything comes from the checkpoint itself: its items through the verifying restore, so a damaged checkpoint is never
exported, the model's configuration from its manifest, the tokenizer from beside it. Called by rank 0 when a run is
done, and as a program (`python -m trainer.export`) by `trainingrun checkpoint export`; the folder appears whole or not
at all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from trainer.architecture import transformers_values
from trainer.checkpoint.errors import NotExportable
from trainer.checkpoint.flat import from_json, take
from trainer.checkpoint.manifest import Manifest, read_manifest
from trainer.checkpoint.restore import from_durable
from trainer.checkpoint.shards import dtype_of
from trainer.checkpoint.store import Place, Store, as_store, store_of, sync_folder
from trainer.errors import TrainerError
from trainer.families import stored_shape
from trainer.output import SOURCE_FILE, check_replaceable

WEIGHTS, AVERAGES = "model.", "ema."  # the state's prefixes for parameters, and for their averages
_WEIGHTS_FILE = "model.safetensors"


def export(location: Place, name: str, out_dir: Path) -> None:
    """Write the model of checkpoint `name` to `out_dir`. An equal export that is there already stays.

    Where the run keeps an average of the weights, that is the model. The precision is that of the run's modules.
    Raises CheckpointDamaged, NotExportable, FileNotFoundError, and ConfigError when something else stands at `out_dir`.
    """
    store = as_store(location)
    manifest = read_manifest(store, name)
    about = manifest.model
    if not about:
        raise NotExportable(name, "its manifest does not say what model it is of")
    source = {
        "checkpoint": name,
        "manifest": manifest.digest,
        "runUid": manifest.run_uid,
        "step": manifest.step,
        "tokens": manifest.scalars.get("tokens"),
        "dataFingerprint": about["dataFingerprint"],
    }
    if _is_there(out_dir, source):
        return
    check_replaceable(out_dir)
    model = _empty_model(manifest)
    prefix = AVERAGES if any(item.name.startswith(AVERAGES) for item in manifest.items) else WEIGHTS
    _fill(store, manifest, prefix, _as_stored(model))
    model.to(dtype_of(about["dtype"]))
    model.config.dtype = dtype_of(about["dtype"])
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = out_dir.parent / f".{out_dir.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    _copy_tokenizer(store, name, about["tokenizer"], temporary)
    _write(model, about["endToken"], source, temporary)
    _put(temporary, out_dir)


def _copy_tokenizer(store: Store, checkpoint: str, folder: str, target: Path) -> None:
    files = store.names(folder)
    if not files:
        raise NotExportable(checkpoint, f"its tokenizer {store.where(folder)} is gone")
    for file in files:
        (target / file).write_bytes(store.read(f"{folder}/{file}"))


def _empty_model(manifest: Manifest) -> PreTrainedModel:
    """The model with the embedding rows that were trained; its weights are about to be replaced."""
    end = manifest.model["endToken"]
    given = {"bos_token_id": end, "eos_token_id": end} | transformers_values(manifest.model["config"])
    config = AutoConfig.for_model(**given)
    dtype = dtype_of(next(item.dtype for item in manifest.items if item.name.startswith(WEIGHTS)))
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _as_stored(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's parameters under the names and in the shapes of the state; they share its storage."""
    kind = model.config.model_type
    return {
        name: parameter.detach().view(stored_shape(kind, name, tuple(parameter.shape)))
        for name, parameter in model.named_parameters()
    }


def _fill(store: Store, manifest: Manifest, prefix: str, parameters: dict[str, torch.Tensor]) -> None:
    """From the checkpoint: each parameter under its own name, or out of the flat tensors that hold them."""
    places = from_json(manifest.model.get("flat") or {})
    if not places:
        from_durable(store, manifest.name, {prefix + name: tensor for name, tensor in parameters.items()})
        return
    shapes = {item.name: (item.shape, item.dtype) for item in manifest.items if item.name.startswith(prefix)}
    flats = {name: torch.empty(shape, dtype=dtype_of(dtype)) for name, (shape, dtype) in shapes.items()}
    from_durable(store, manifest.name, flats)
    for name, tensor in parameters.items():
        place = places.get(name)
        if place is None or prefix + place.item not in flats:
            raise NotExportable(manifest.name, f"it does not say where {name} is")
        tensor.copy_(take(flats[prefix + place.item], place, tuple(tensor.shape)))


def _write(model: PreTrainedModel, end: int, source: dict[str, Any], folder: Path) -> None:
    config = model.config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
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


def main() -> int:
    """0, or the exit code of the error that standard error tells."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export")
    parser.add_argument("--location", required=True, help="URI of the checkpoint location")
    parser.add_argument("--checkpoint", required=True, help="name of the checkpoint, as step-00001200.e0041")
    parser.add_argument("--output", required=True, type=Path, help="the folder to make")
    options = parser.parse_args()
    try:
        export(store_of(options.location), options.checkpoint, options.output.absolute())
    except FileNotFoundError as error:
        print(f"{options.location}: there is no checkpoint {options.checkpoint} ({error})", file=sys.stderr)
        return 1
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
