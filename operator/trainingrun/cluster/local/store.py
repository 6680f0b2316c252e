"""The stand-in for the API server: runs, their status, their create-only records and their events, as files.

It keeps and compares; it decides nothing. Called by the adapter (controller, membership) and by whoever
applies a run. A run exists when its folder does; it is made and removed in one rename.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainingrun.cluster.local import files
from trainingrun.cluster.local.layout import Layout
from trainingrun.ports import Conflict, EventRecord, RunObject
from trainingrun.protocol import wire
from trainingrun.protocol.names import parse_record_name
from trainingrun.protocol.records import Epoch, Revision


class Store:
    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)

    # runs

    def apply(self, manifest: Mapping[str, Any], now: float) -> RunObject:
        """Create the run of that name, or give it this manifest (a new generation when the spec differs)."""
        name = str(manifest["metadata"]["name"])
        folder = self.layout.run(name)
        self.layout.runs.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            run = {
                "manifest": manifest,
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "version": 1,
                "createdAt": now,
            }
            status = {"version": 1, "status": {}}
            with suppress(Conflict):  # somebody else made it meanwhile: update that one
                files.create_folder(folder, {"run.json": run, "status.json": status})
        with files.exclusive(folder / "lock"):
            run = files.read(folder / "run.json")
            if run["manifest"] != manifest:
                same_spec = run["manifest"].get("spec") == manifest.get("spec")
                run["generation"] += 0 if same_spec else 1
                files.replace(
                    folder / "run.json", {**run, "manifest": manifest, "version": run["version"] + 1}
                )
        found = self.run(name)
        if found is None:
            raise Conflict(f"run {name} was removed while it was applied")
        return found

    def run_names(self) -> Sequence[str]:
        return [
            name for name in files.names(self.layout.runs) if (self.layout.run(name) / "run.json").exists()
        ]

    def run(self, name: str) -> RunObject | None:
        folder = self.layout.run(name)
        run, status = files.read(folder / "run.json"), files.read(folder / "status.json")
        if run is None or status is None:
            return None
        return RunObject(
            name=name,
            uid=run["uid"],
            generation=run["generation"],
            resource_version=f"{run['version']}.{status['version']}",
            manifest=run["manifest"],
            status=status["status"],
            deleting=(folder / "deleting").exists(),
            created_at=run["createdAt"],
        )

    def name_of(self, run_uid: str) -> str | None:
        """The run that has this uid; None when it is gone or being deleted."""
        for name in self.run_names():
            run = self.run(name)
            if run is not None and run.uid == run_uid and not run.deleting:
                return name
        return None

    def write_status(self, name: str, status: Mapping[str, Any], resource_version: str) -> None:
        """Compare and swap; raises Conflict when the run changed since `resource_version`, or is gone."""
        folder = self.layout.run(name)
        try:
            with files.exclusive(folder / "lock"):
                run = self.run(name)
                if run is None or run.resource_version != resource_version:
                    raise Conflict(f"status of {name}: changed since version {resource_version}")
                version = int(resource_version.partition(".")[2]) + 1
                files.replace(folder / "status.json", {"version": version, "status": dict(status)})
        except FileNotFoundError:
            raise Conflict(f"run {name} is gone") from None

    def mark_deleting(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self.layout.run(name) / "deleting").touch()

    def remove_run(self, name: str) -> None:
        """Forget the run and everything under it. Its pods must be gone."""
        files.remove_folder(self.layout.run(name))

    # records

    def create_record(self, record: Revision | Epoch) -> None:
        run = self.run(record.run)
        if run is None or run.uid != record.run_uid:
            raise Conflict(f"{record.name}: run {record.run} with uid {record.run_uid} is gone")
        folder = self.layout.records(record.run)
        try:
            folder.mkdir(exist_ok=True)
            files.create_only(folder / f"{record.name}.json", wire.to_json(record))
        except FileNotFoundError:
            raise Conflict(f"{record.name}: run {record.run} was removed") from None

    def revisions(self, run: str, run_uid: str) -> list[Revision]:
        found = [wire.from_json(Revision, data) for _, data in self._records(run, "r")]
        return sorted((item for item in found if item.run_uid == run_uid), key=lambda item: item.revision)

    def epochs(self, run: str, run_uid: str, after: int = 0) -> list[Epoch]:
        found = [wire.from_json(Epoch, data) for _, data in self._records(run, "e", after)]
        return sorted((item for item in found if item.run_uid == run_uid), key=lambda item: item.epoch)

    def _records(self, run: str, kind: str, after: int = 0) -> list[tuple[str, Any]]:
        folder = self.layout.records(run)
        found = []
        for name in files.names(folder):
            parsed = parse_record_name(name.removesuffix(".json"))
            if parsed and parsed[:2] == (run, kind) and parsed[2] > after:
                data = files.read(folder / name)
                if data is not None:  # None: the run was removed meanwhile
                    found.append((name, data))
        return found

    # events

    def emit(self, run: str, event: EventRecord) -> None:
        """Append one line. An event for a run that is gone is dropped, as Kubernetes drops it."""
        line = json.dumps(wire.to_json(event)) + "\n"
        with suppress(FileNotFoundError):
            descriptor = os.open(
                self.layout.run(run) / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
            )
            try:
                os.write(descriptor, line.encode())  # one write: lines of two writers do not mix
            finally:
                os.close(descriptor)

    def events(self, run: str, skip: int = 0) -> list[EventRecord]:
        """All events but the first `skip`, oldest first. A line that a dying writer left torn is left out."""
        try:
            lines = (self.layout.run(run) / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(wire.from_json(EventRecord, json.loads(line)))
            except ValueError:
                continue
        return found[skip:]


def clock() -> float:
    """Seconds since 1970: the one place where the local cluster reads the wall clock."""
    return time.time()
