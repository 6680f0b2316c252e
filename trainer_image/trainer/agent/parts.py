"""What the agent starts and asks of the rest of the trainer, in one place; tests put small parts in their
stead.

None of the functions loads torch; the rank module does, in the fork server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.checkpoint import manifest
from trainer.config import read_config
from trainer.output import check_replaceable
from trainingrun.protocol.messages import DurableCheckpoint

Spec = dict[str, Any]


@dataclass(frozen=True)
class Parts:
    rank_module: str  # main(job: RankJob, local_rank: int) -> None
    data_module: str  # prepare(spec, cache_dir, say) -> Any
    check_spec: Callable[[Spec], object]  # raises TrainerError
    claim: Callable[[Spec, str, str], object]  # (spec, run uid, run name); raises TrainerError
    look: Callable[
        [Spec], tuple[tuple[DurableCheckpoint, ...], bool]
    ]  # (checkpoints, nothing was ever committed)


def real_parts() -> Parts:
    return Parts("trainer.rank", "trainer.data.prepare", _check, _claim, _look)


def _check(spec: Spec) -> None:
    check_replaceable(read_config(spec).output)


def _claim(spec: Spec, run_uid: str, run_name: str) -> None:
    checkpoint = spec["checkpoint"]
    manifest.claim(
        manifest.path_of(checkpoint["location"]["uri"]), run_uid, run_name, bool(checkpoint["adopt"])
    )


def _look(spec: Spec) -> tuple[tuple[DurableCheckpoint, ...], bool]:
    location = manifest.path_of(spec["checkpoint"]["location"]["uri"])
    return tuple(manifest.list_checkpoints(location)), manifest.location_fresh(location)
