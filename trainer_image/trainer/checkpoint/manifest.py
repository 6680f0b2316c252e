"""A durable checkpoint exists if and only if its manifest exists and is whole; this reads and writes
manifests.

The manifest says what the checkpoint holds, where each item's bytes are and what they hash to. It is JSON
with its own digest, created once, after every byte that it names is durable. Called by agents (what can be
restored, whose is the location), by ranks, and by the export. No torch, and never the pickle beside it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.errors import CheckpointDamaged, LocationTaken
from trainer.checkpoint.location import COMMITTED_FILE, Owner, add_owner, create_only, owners, path_of
from trainingrun.protocol import names
from trainingrun.protocol.messages import DurableCheckpoint

__all__ = [
    "LocationTaken",
    "Manifest",
    "claim",
    "damaged_manifests",
    "list_checkpoints",
    "location_fresh",
    "newest",
    "path_of",
]

STATE_FORMAT = 1
_FOLDER = re.compile(r"^step-\d{8,}\.e\d{4,}$")


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
    byte_offset: int
    byte_length: int
    sha256: str  # of those bytes


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

    def content(self) -> dict[str, Any]:
        """JSON data, without the digest."""
        scalars = self.scalars
        return {
            "stateFormat": STATE_FORMAT,
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
            "items": [asdict(item) for item in self.items],
        }

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(_canonical(self.content())).hexdigest()

    @staticmethod
    def read(folder: Path) -> Manifest:
        """The manifest of a checkpoint's folder, verified. Raises CheckpointDamaged, FileNotFoundError."""
        return _parse(folder / names.MANIFEST_FILE)

    def commit(self, location: Path) -> bool:
        """Create the manifest; False when there is one already. All files must be durable before."""
        content = self.content() | {"digest": self.digest}
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        if not create_only(location / self.name / names.MANIFEST_FILE, text.encode()):
            return False
        create_only(location / COMMITTED_FILE, self.name.encode())
        return True


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@functools.lru_cache(maxsize=64)
def _parse_once(path: Path, _mtime: int, _size: int, _inode: int) -> Manifest:
    """For listings: agents look often, and manifests never change."""
    return _parse(path)


def _parse(path: Path) -> Manifest:
    name = path.parent.name
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        digest = content.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointDamaged(name, path, "", "not a whole manifest") from error
    if digest != "sha256:" + hashlib.sha256(_canonical(content)).hexdigest():
        raise CheckpointDamaged(name, path, "", "its content does not match its own digest")
    if content["stateFormat"] != STATE_FORMAT:
        raise CheckpointDamaged(
            name, path, "", f"state format {content['stateFormat']}, this reads {STATE_FORMAT}"
        )
    if content["name"] != name:
        raise CheckpointDamaged(name, path, "", f"it is the manifest of {content['name']}")
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
    )


def folders(location: Path) -> list[Path]:
    """Folders that are named like checkpoints, with a manifest or without."""
    if not location.exists():
        return []
    return sorted(path for path in location.iterdir() if _FOLDER.match(path.name))


def _scan(location: Path) -> tuple[list[Manifest], list[str]]:
    """(whole manifests, oldest first; names of damaged ones)."""
    whole, damaged = [], []
    for folder in folders(location):
        try:
            path = folder / names.MANIFEST_FILE
            stat = path.stat()
            whole.append(_parse_once(path, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except FileNotFoundError:
            continue
        except CheckpointDamaged:
            damaged.append(folder.name)
    # The lineage is that of the newest epoch; epochs of a run that was adopted come before all of ours.
    turn = {owner.run_uid: number for number, owner in enumerate(owners(location))}
    whole.sort(key=lambda manifest: (turn.get(manifest.run_uid, -1), manifest.epoch, manifest.step))
    return whole, damaged


def list_checkpoints(location: Path) -> list[DurableCheckpoint]:
    """Checkpoints whose manifest is whole, the newest last. Their data is verified when it is read."""
    return [
        DurableCheckpoint(manifest.name, manifest.epoch, manifest.step) for manifest in _scan(location)[0]
    ]


def damaged_manifests(location: Path) -> list[str]:
    """Names of checkpoints whose manifest is there but not whole."""
    return _scan(location)[1]


def newest(location: Path) -> DurableCheckpoint | None:
    found = list_checkpoints(location)
    return found[-1] if found else None


def location_fresh(location: Path) -> bool:
    """Whether no checkpoint was ever committed here, not even one that is damaged or gone now."""
    if (location / COMMITTED_FILE).exists():
        return False
    return not any((folder / names.MANIFEST_FILE).exists() for folder in folders(location))


def claim(location: Path, run_uid: str, run_name: str, adopt: bool) -> None:
    """Make the location this run's, once; calling it again changes nothing.

    Raises LocationTaken when it is another run's and `adopt` is False. Adoption is for good: the run before
    may not save here any more.
    """
    location.mkdir(parents=True, exist_ok=True)
    while True:
        present = owners(location)
        if not present:
            present = [
                Owner(uid, "unknown") for uid in sorted({m.run_uid for m in _scan(location)[0]} - {run_uid})
            ]
            number = 1
        else:
            if present[-1].run_uid == run_uid:
                return
            number = len(present) + 1
        if present and not adopt:
            raise LocationTaken(location, present[-1].run_name, present[-1].run_uid, run_name)
        if add_owner(location, Owner(run_uid, run_name), number):
            return
