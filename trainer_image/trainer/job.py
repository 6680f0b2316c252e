"""What an agent hands to the ranks it starts, and the mailbox through which they talk back.

A mailbox is a small memory-backed folder, one for each epoch and node. Files in it are replaced atomically, so a
reader sees a whole message or the one before. Called by the agent and by the ranks; standard library only.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainingrun.protocol import wire
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import Epoch, RankExit, SnapshotId


@dataclass(frozen=True)
class RankJob:
    """Arguments of `trainer.rank.main(job, local_rank)`; picklable. Ranks take nothing from the environment."""

    spec: dict[str, Any]  # resolved spec, API form
    record: Epoch
    member: int  # index of this node in record.members; rank = member * processes_per_node + local_rank
    slot: int
    run_uid: str
    mailbox: Path
    snapshot_dir: Path  # memory-backed; holds the snapshots of this node's ranks
    restore_files: tuple[Path, ...]  # Memory: snapshot files to read, own and fetched from peers
    cache_dir: Path  # prepared data
    log_dir: Path

    def rank(self, local_rank: int) -> int:
        return self.member * self.record.rung.processes_per_node + local_rank


@dataclass(frozen=True)
class Result:
    """How the ranks of a node ended well."""

    outcome: str  # Done | Paused
    step: int
    final: bool = False  # this node holds rank 0, and checkpoint and export are complete
    manifest: str = ""
    export: str = ""
    progress: Progress | None = None


@dataclass(frozen=True)
class Generation:
    """A snapshot that every rank has sealed, for the agents to copy their buddies' parts of."""

    snapshot: SnapshotId
    kept: SnapshotId | None  # the one before, which must stay until this one is complete everywhere


@dataclass(frozen=True)
class Copied:
    """How it ended on this node."""

    snapshot: SnapshotId
    complete: bool


class Mailbox:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    # rank 0 of the run -> agent
    def post_progress(self, progress: Progress) -> None:
        self._put("progress.json", progress)

    def progress(self) -> Progress | None:
        return self._get("progress.json", Progress)

    # first local rank -> agent
    def post_activity(self, text: str) -> None:
        self._put("activity.json", {"text": text})

    def activity(self) -> str:
        data = self._read("activity.json")
        return str(data["text"]) if data else ""

    def post_result(self, result: Result) -> None:
        """By the first local rank, after every collective is over."""
        self._put("result.json", result)

    def result(self) -> Result | None:
        return self._get("result.json", Result)

    # any rank -> agent, before it exits with a code that is not 0
    def post_error(self, error: RankExit) -> None:
        self._put(f"error-{error.local_rank}.json", error)

    def errors(self) -> tuple[RankExit, ...]:
        found = (self._get(path.name, RankExit) for path in sorted(self.folder.glob("error-*.json")))
        return tuple(error for error in found if error is not None)

    # any rank -> agent: the restore point failed its checksums
    def post_damaged(self, checkpoint: str) -> None:
        self._put("damaged.json", {"checkpoint": checkpoint})

    def damaged(self) -> str:
        data = self._read("damaged.json")
        return str(data["checkpoint"]) if data else ""

    # first local rank -> agent
    def post_generation(self, generation: Generation) -> None:
        self._put("generation.json", generation)

    def generation(self) -> Generation | None:
        return self._get("generation.json", Generation)

    # agent -> first local rank
    def post_copied(self, copied: Copied) -> None:
        self._put("copied.json", copied)

    def copied(self) -> Copied | None:
        return self._get("copied.json", Copied)

    # agent -> ranks
    def request_pause(self) -> None:
        (self.folder / "pause").touch()

    def pause_requested(self) -> bool:
        return (self.folder / "pause").exists()

    def _put(self, name: str, message: Any) -> None:
        temporary = self.folder / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(wire.to_json(message)))
        temporary.replace(self.folder / name)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            text = (self.folder / name).read_text()
        except FileNotFoundError:
            return None
        data: dict[str, Any] = json.loads(text)
        return data

    def _get(self, name: str, kind: type[Any]) -> Any:
        data = self._read(name)
        return None if data is None else wire.from_json(kind, data)
