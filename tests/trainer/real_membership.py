"""The real membership service over records in memory: `python -m tests.trainer.real_membership FILE`.

Runs with the operator's environment. Writes its port as the first line of FILE, then each epoch's record as
one line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainingrun.membership.server import serve
from trainingrun.membership.settings import Settings
from trainingrun.ports import Conflict
from trainingrun.protocol import wire
from trainingrun.protocol.messages import DurableCheckpoint
from trainingrun.protocol.records import Epoch, Revision, Rung

RUN, UID = "fake", "uid-1"


def a_rung(nodes: int) -> Rung:
    return Rung(nodes, 2, 1, nodes, 1, 2, 1, 1, 0, nodes)


class MemoryRecords:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._epochs: list[Epoch] = []

    def run_exists(self, run_uid: str) -> str | None:
        return RUN if run_uid == UID else None

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        return None

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        spec: dict[str, Any] = {"scale": {"minNodes": 1, "maxNodes": 2, "growHoldSeconds": 1}}
        return [Revision(f"{RUN}-r1", RUN, UID, 1, spec, (a_rung(1), a_rung(2)), {}, "test")]

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        return [epoch for epoch in self._epochs if epoch.epoch > after]

    def create(self, record: Revision | Epoch) -> None:
        if not isinstance(record, Epoch) or any(epoch.name == record.name for epoch in self._epochs):
            raise Conflict(record.name)
        self._epochs.append(record)
        self.write(json.dumps(wire.to_json(record)))

    def write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    records = MemoryRecords(Path(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = Settings(start_wait_seconds=60.0)
    asyncio.run(serve(records, "127.0.0.1", 0, settings, lambda host, port: records.write(str(port))))
