"""What an export needs to know beside the weights: written with the checkpoints, so that each of them can be exported
by itself, anywhere, without the run's specification or its data.

The model's configuration goes into the manifest. The tokenizer's files go into a folder of the location that is named
by their content, once, before the first manifest that names it. Called by the save, on rank 0. No torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.checkpoint.flat import FlatPlace, to_json
from trainer.checkpoint.store import Place, as_store


@dataclass(frozen=True)
class AboutModel:
    config: dict[str, Any]  # of transformers, with the rows of the embedding that are trained
    dtype: str  # of the modules: bfloat16, where the state is float32
    end_token: int
    tokenizer_dir: Path
    data_fingerprint: str
    flat: Mapping[str, FlatPlace] = field(default_factory=dict)  # of parameters that are kept in flat tensors

    def put(self, location: Place) -> dict[str, Any]:
        """Put the tokenizer at `location`; what the manifest says."""
        store = as_store(location)
        files = {
            path.name: path.read_bytes() for path in sorted(self.tokenizer_dir.iterdir()) if path.is_file()
        }
        folder = f"tokenizer-{_digest(files)}"
        if set(store.names(folder)) != set(files):
            store.make_folder(folder)
            for name, content in files.items():
                store.create(f"{folder}/{name}", content)
        return {
            "config": self.config,
            "dtype": self.dtype,
            "endToken": self.end_token,
            "tokenizer": folder,
            "dataFingerprint": self.data_fingerprint,
            "flat": to_json(self.flat),
        }


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()[:12]
