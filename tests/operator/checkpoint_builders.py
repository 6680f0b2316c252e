"""Checkpoint locations for tests without torch: manifests as the trainer writes them, over bytes of any kind."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trainingrun.protocol import names
from trainingrun.protocol.checkpoints import HASHED_ITEMS, STATE_FORMAT, Item, Manifest

UID = "uid-1"


def a_location(folder: Path, run: str = "demo") -> Path:
    folder.mkdir(parents=True)
    (folder / names.OWNER_FILE).write_text(json.dumps({"runUid": UID, "runName": run}))
    (folder / "committed").write_text("")
    return folder


def a_manifest(
    step: int, epoch: int, contents: dict[str, bytes], state_format: int = STATE_FORMAT, **other: Any
) -> Manifest:
    """Each content is a file with two items, one half each, and a block each."""
    items, sums, block = [], {}, 0
    for number, (file, data) in enumerate(contents.items()):
        block = len(data) // 2
        halves = [data[:block], data[block:]]
        sums[file] = "".join(hashlib.sha256(half).hexdigest() for half in halves)
        for start, half in ((0, halves[0]), (block, halves[1])):
            items.append(
                Item(
                    name=f"model.{number}.{start}",
                    kind="tensor",
                    dtype="float32",
                    shape=(4,),
                    offsets=(0,),
                    piece_shape=(4,),
                    file=file,
                    byte_offset=start,
                    byte_length=len(half),
                    sha256=hashlib.sha256(half).hexdigest() if state_format == HASHED_ITEMS else "",
                )
            )
    return Manifest(
        name=names.checkpoint_dir(step, epoch),
        step=step,
        epoch=epoch,
        run_uid=UID,
        parent="",
        scalars={"step": step, "tokens": 1000 * step, "samples": step},
        plan={},
        versions={"torch": "x"},
        items=tuple(items),
        files={file: len(data) for file, data in contents.items()},
        sums=sums if state_format == STATE_FORMAT else {},
        block_bytes=block,
        state_format=state_format,
        **other,
    )


def a_checkpoint(location: Path, step: int, epoch: int = 1, **other: Any) -> Path:
    contents = {f"__{rank}_0.distcp": bytes([rank, step % 256]) * 500 for rank in range(2)}
    manifest = a_manifest(step, epoch, contents, **other)
    folder = location / manifest.name
    folder.mkdir()
    for file, data in contents.items():
        (folder / file).write_bytes(data)
    (folder / names.MANIFEST_FILE).write_bytes(manifest.text())
    return folder
