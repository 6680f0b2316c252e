"""A folder of Hugging Face weights as it lies on disk: which tensors its safetensors files hold, and parts of them.

Only headers are read until a part is asked for, and then no more than that part. Called by `weights`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainer.errors import ConfigError
from trainingrun.protocol.source_config import CONFIG_FILE

SOURCE_FIELD = "spec.model.source.uri"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ENDS = 1 << 16  # bytes at either end of a file that the fingerprint covers
_HEADER_LIMIT = 100 << 20


@dataclass(frozen=True)
class StoredTensor:
    name: str
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: BF16
    file: Path


class WeightsFolder:
    """Raises ConfigError when it holds no whole model."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.uri = uri
        self._files = self._weight_files()
        self.tensors: dict[str, StoredTensor] = {}
        for file in self._files:
            self.tensors |= self._tensors_of(file)

    def config(self) -> dict[str, Any]:
        """What config.json says."""
        content = self._json(CONFIG_FILE)
        if content is None:
            raise self.refused(f"there is no {CONFIG_FILE} in it", "name a folder that transformers can load")
        return content

    def read(self, name: str, box: tuple[slice, ...]) -> torch.Tensor:
        """The part of a tensor that stands in `box` (of as many dims, or of fewer: the first ones); no more is read.

        Raises ConfigError when the file is damaged.
        """
        stored = self.tensors[name]
        try:
            with safe_open(stored.file, "pt") as file:
                part: torch.Tensor = file.get_slice(name)[box] if box else file.get_tensor(name)
                return part
        except (SafetensorError, OSError) as error:
            raise self.refused(
                f"{stored.file.name}: {name} cannot be read: {error}", "copy it anew"
            ) from error

    def fingerprint(self) -> str:
        """Another one, when the folder is another: of the config, and of each file's header, size and ends."""
        digest = hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode())
        for path in self._files:
            size = path.stat().st_size
            digest.update(f"{path.name}:{size}:".encode())
            with path.open("rb") as file:
                digest.update(file.read(_ENDS))
                file.seek(max(0, size - _ENDS))
                digest.update(file.read(_ENDS))
        return digest.hexdigest()[:16]

    def refused(self, problem: str, fix: str) -> ConfigError:
        return ConfigError(SOURCE_FIELD, self.uri, problem, fix)

    def _weight_files(self) -> list[Path]:
        if not self.folder.is_dir():
            raise self.refused("there is no such folder", "check the path")
        index = self._json(INDEX_FILE)
        if index is None:
            file = self.folder / WEIGHTS_FILE
            if not file.exists():
                others = sorted(path.name for path in self.folder.glob("*.bin"))
                problem = f"there is neither {WEIGHTS_FILE} nor {INDEX_FILE} in it"
                fix = "save the model with transformers' save_pretrained, which writes safetensors"
                raise self.refused(problem + (f", but {others[0]}" if others else ""), fix)
            return [file]
        names = index.get("weight_map")
        if not isinstance(names, dict) or not names:
            raise self.refused(f"{INDEX_FILE} has no weight_map", "copy it anew")
        files = [self.folder / name for name in sorted(set(names.values()))]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise self.refused(
                f"{missing[0]} is not there, but {INDEX_FILE} names it", "copy what is missing"
            )
        return files

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise self.refused(f"{name} cannot be read: {error}", "copy it anew") from error
        if not isinstance(content, dict):
            raise self.refused(f"{name} is not a JSON object", "copy it anew")
        return content

    def _tensors_of(self, path: Path) -> dict[str, StoredTensor]:
        """From the header: its length in eight bytes, then JSON."""
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            text = file.read(length) if 0 < length <= min(size - 8, _HEADER_LIMIT) else b""
        try:
            header: dict[str, Any] = json.loads(text)
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.refused(f"{path.name} is not a whole safetensors file", "copy it anew") from error
        if 8 + length + end != size:
            problem = f"{path.name} has {size} bytes, but its header tells of {8 + length + end}"
            raise self.refused(problem, "copy it anew: it was cut off")
        return {
            name: StoredTensor(name, tuple(entry["shape"]), entry["dtype"], path)
            for name, entry in header.items()
        }
