"""The format of durable checkpoints: what a location holds, and the manifest that makes files a checkpoint.

    <location>/owner.json                    whose checkpoints these are; owner.0002.json after an adoption
    <location>/committed                     a checkpoint was committed here once
    <location>/fence-e0007                   no epoch below 7 commits any more
    <location>/pins/<checkpoint>             retention keeps it
    <location>/tokenizer-<digest>/           what an export needs beside the weights
    <location>/step-00001200.e0041/          files of one checkpoint; it exists if and only if manifest.json is whole

A manifest says what the checkpoint holds, where each item's bytes are and what each block of each file hashes to; it
is JSON with its own digest, created once, after every byte that it names is durable. State format 1, which is read but
no longer written, has a hash of each item instead. Pure: text in, values out. Used by the trainer, which writes
checkpoints, and by the command line, which lists and verifies them without torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

STATE_FORMAT = 2
HASHED_ITEMS = 1  # the state format before
BLOCK_BYTES = 256 << 10
COMMITTED_FILE = "committed"
PINS_FOLDER = "pins"
TRASH = ".trash-"  # what a folder's name begins with while it is removed
FOLDER = re.compile(r"^step-(\d{8,})\.e(\d{4,})$")
FENCE = re.compile(r"^fence-e(\d+)$")
_OWNER = re.compile(r"^owner(?:\.(\d+))?\.json$")
_SUM = 64  # characters of a sha256


class ManifestDamaged(ValueError):
    """The text is not a whole manifest of that checkpoint."""


@dataclass(frozen=True)
class Item:
    """One stored piece of a tensor: where it stands in the whole tensor, and where its bytes are."""

    name: str
    kind: str  # tensor
    dtype: str  # torch's name without the prefix: float32
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]
    piece_shape: tuple[int, ...]
    file: str
    byte_offset: int  # of the container that torch.load reads
    byte_length: int
    data_offset: int = 0  # in the file, of the elements alone, in row-major order; 0 in format 1
    sha256: str = ""  # of the container, in format 1


@dataclass(frozen=True)
class Manifest:
    name: str
    step: int
    epoch: int
    run_uid: str
    parent: str  # manifest that this lineage came from; "" for the first
    scalars: dict[str, Any]  # everything that is not a tensor
    plan: dict[str, Any]  # how it was cut, for people: it loads at any plan
    versions: dict[str, str]
    items: tuple[Item, ...]
    files: dict[str, int]  # bytes
    model: dict[str, Any] = field(
        default_factory=dict
    )  # what an export needs to know; {}: it was not written down
    sums: dict[str, str] = field(
        default_factory=dict
    )  # of each file: sha256 of its blocks, one after another
    block_bytes: int = BLOCK_BYTES
    state_format: int = STATE_FORMAT

    def content(self) -> dict[str, Any]:
        """JSON data, without the digest."""
        scalars = self.scalars
        content = {
            "stateFormat": self.state_format,
            "name": self.name,
            "step": self.step,
            "epoch": self.epoch,
            "runUid": self.run_uid,
            "parent": self.parent,
            "tokens": scalars.get("tokens"),
            "dataPosition": {"samples": scalars.get("samples")},
            "schedule": {"updates": scalars.get("updates"), "learningRate": scalars.get("learningRate")},
            "scalars": scalars,
            "plan": self.plan,
            "versions": self.versions,
            "files": self.files,
            "items": [_as_json(item, self.state_format) for item in self.items],
        }
        if self.state_format != HASHED_ITEMS:
            content |= {"blockBytes": self.block_bytes, "sums": self.sums}
        return content | ({"model": self.model} if self.model else {})

    def hashed(self, file: str) -> Iterator[tuple[int, int, str]]:
        """(start, end, sha256) of everything in `file` that was hashed together, in order."""
        if self.state_format == HASHED_ITEMS:
            for item in sorted(self.items, key=lambda one: one.byte_offset):
                if item.file == file:
                    yield item.byte_offset, item.byte_offset + item.byte_length, item.sha256
            return
        for start in range(0, self.files[file], self.block_bytes):
            yield start, min(start + self.block_bytes, self.files[file]), self.sum_of(file, start)

    def sum_of(self, file: str, start: int) -> str:
        """The sha256 of the block that begins at `start`."""
        at = start // self.block_bytes * _SUM
        return self.sums[file][at : at + _SUM]

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(_canonical(self.content())).hexdigest()

    @property
    def total_bytes(self) -> int:
        return sum(self.files.values())

    def text(self) -> bytes:
        """What is written."""
        content = self.content() | {"digest": self.digest}
        return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def parse(text: bytes, name: str) -> Manifest:
    """The manifest of checkpoint `name`, verified. Raises ManifestDamaged."""
    try:
        if not text.endswith(b"\n"):
            raise ValueError("cut off")
        content: dict[str, Any] = json.loads(text)
        digest = content.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ManifestDamaged("not a whole manifest") from error
    if digest != "sha256:" + hashlib.sha256(_canonical(content)).hexdigest():
        raise ManifestDamaged("its content does not match its own digest")
    state_format = content["stateFormat"]
    if state_format not in (HASHED_ITEMS, STATE_FORMAT):
        raise ManifestDamaged(f"state format {state_format}, this reads {HASHED_ITEMS} and {STATE_FORMAT}")
    if content["name"] != name:
        raise ManifestDamaged(f"it is the manifest of {content['name']}")
    block_bytes, sums = content.get("blockBytes", BLOCK_BYTES), content.get("sums", {})
    needed = {file: _SUM * -(-size // block_bytes) for file, size in content["files"].items()}
    if state_format == STATE_FORMAT and {file: len(text) for file, text in sums.items()} != needed:
        raise ManifestDamaged("its hashes do not cover its files")
    lists = ("shape", "offsets", "piece_shape")
    items = tuple(Item(**(item | {key: tuple(item[key]) for key in lists})) for item in content["items"])
    return Manifest(
        name=name,
        step=content["step"],
        epoch=content["epoch"],
        run_uid=content["runUid"],
        parent=content["parent"],
        scalars=content["scalars"],
        plan=content["plan"],
        versions=content["versions"],
        items=items,
        files=content["files"],
        model=content.get("model", {}),
        sums=sums,
        block_bytes=block_bytes,
        state_format=state_format,
    )


def _as_json(item: Item, state_format: int) -> dict[str, Any]:
    other = "data_offset" if state_format == HASHED_ITEMS else "sha256"
    return {key: value for key, value in vars(item).items() if key != other}


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def step_and_epoch(folder: str) -> tuple[int, int] | None:
    """What the name of a checkpoint's folder says; None for another name."""
    match = FOLDER.match(folder)
    return (int(match[1]), int(match[2])) if match else None


def owner_number(file: str) -> int | None:
    """Which owner, counted from 1, a file names; None for another file."""
    match = _OWNER.match(file)
    return int(match[1] or 1) if match else None


def in_order(manifests: Iterable[Manifest], owners: Mapping[int, str]) -> list[Manifest]:
    """The newest last. The lineage is that of the newest epoch; those of a run that was adopted come before all of the
    run's that adopted it. `owners`: run uids by number.
    """
    turn = {uid: number for number, uid in sorted(owners.items())}
    return sorted(manifests, key=lambda one: (turn.get(one.run_uid, -1), one.epoch, one.step))
