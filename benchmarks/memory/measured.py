"""The rank's program with its memory looked at: before it begins, and the peak when it has ended. Nothing is changed.

The kernel keeps the peak of resident memory (VmHWM); it is reset at the start, because a fork has that of its parent.
Snapshots lie in shared memory, which is taken before the first step and held to the end, so the peak of the rest is
the peak of all less that.
"""

from __future__ import annotations

import json
from pathlib import Path

from trainer import rank
from trainer.job import RankJob

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"


def main(job: RankJob, local_rank: int) -> None:
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before = status()
    rank.main(job, local_rank)
    after = status()
    found = {
        "baseBytes": before["RssAnon"] + before["RssFile"] + before["RssShmem"],
        "peakBytes": after["VmHWM"],
        "snapshotBytes": after["RssShmem"] - before["RssShmem"],
        "libraryBytes": after["RssFile"] - before["RssFile"],
    }
    (job.log_dir / f"memory-{local_rank}.json").write_text(json.dumps(found))


def status() -> dict[str, int]:
    """Bytes by name."""
    rows = (line.split() for line in _STATUS.read_text().splitlines() if line.endswith(" kB"))
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}
