"""What the agent starts and asks of the rest of the trainer, in one place; tests put small parts in their
stead.

None of the functions loads torch; the rank module does, in the fork server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.checkpoint import manifest
from trainer.checkpoint.location import path_of
from trainer.checkpoint.store import LOCATION_FIELD, open_place, store_of
from trainer.config import read_config
from trainer.config.source import check_config_file
from trainer.output import check_replaceable
from trainingrun.protocol.messages import DurableCheckpoint

Spec = dict[str, Any]
RANK_MODULES = {"DeepSpeed": "trainer.deepspeed_engine.rank"}


@dataclass(frozen=True)
class Found:
    """What is at the checkpoint location now."""

    checkpoints: tuple[DurableCheckpoint, ...]
    damaged: tuple[str, ...]  # whose manifest is there but not whole
    fresh: bool  # nothing was ever committed


@dataclass(frozen=True)
class Parts:
    rank_module: str  # main(job: RankJob, local_rank: int) -> None
    data_module: str  # prepare(spec, cache_dir, say) -> Any
    check_spec: Callable[[Spec], object]  # raises TrainerError
    claim: Callable[[Spec, str, str], object]  # (spec, run uid, run name); raises TrainerError
    look: Callable[[Spec], Found]
    rank_modules: Mapping[str, str] = field(default_factory=dict)  # of other engines than Native, by engine

    def rank_module_for(self, spec: Spec) -> str:
        """What the fork server imports: only a run of that engine pays for its libraries."""
        return self.rank_modules.get((spec.get("parallelism") or {}).get("engine", ""), self.rank_module)


def real_parts() -> Parts:
    return Parts("trainer.rank", "trainer.preparing", _check, _claim, _look, RANK_MODULES)


def _check(spec: Spec) -> None:
    check_config_file(spec["model"])
    check_replaceable(read_config(spec).output)


def _claim(spec: Spec, run_uid: str, run_name: str) -> None:
    """Both places that the run writes to: it must not find out after its last step that it cannot."""
    checkpoint = spec["checkpoint"]
    location = store_of(checkpoint["location"]["uri"])
    open_place(LOCATION_FIELD, location)
    open_place("spec.output.uri", path_of(spec["output"]["uri"], "spec.output.uri").parent)
    manifest.claim(location, run_uid, run_name, bool(checkpoint["adopt"]))


def _look(spec: Spec) -> Found:
    location = store_of(spec["checkpoint"]["location"]["uri"])
    checkpoints, damaged = manifest.list_checkpoints(location), manifest.damaged_manifests(location)
    return Found(tuple(checkpoints), tuple(damaged), manifest.location_fresh(location))
