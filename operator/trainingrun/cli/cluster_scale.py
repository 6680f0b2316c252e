"""`trainingrun scale`: the most nodes that a run may use. It writes the scale subresource and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainingrun.api.placement import MOST_NODES
from trainingrun.cli.cluster_access import NotAccepted, Place, find_run
from trainingrun.cli.cluster_state import outcome_of, status_of
from trainingrun.cli.cluster_story import SCHEMA_VERSION
from trainingrun.cluster.kubernetes import records
from trainingrun.cluster.kubernetes.objects import records_path, runs_path
from trainingrun.planner.text import counted
from trainingrun.ports import Refused, Unavailable
from trainingrun.protocol.records import Revision, Rung
from trainingrun.protocol.wire import WireError


@dataclass(frozen=True)
class Scaled:
    name: str
    namespace: str
    before: int
    after: int
    note: str = ""

    def sentence(self) -> str:
        if self.before == self.after:
            return f"{self.name}: maxNodes is {self.after} already"
        return f"{self.name}: maxNodes {self.before} -> {self.after}"

    def to_json(self) -> dict[str, Any]:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "name": self.name,
            "namespace": self.namespace,
            "maxNodes": self.after,
            "maxNodesBefore": self.before,
            "note": self.note,
        }


def scale(place: Place, name: str, most: int) -> Scaled:
    """Raises Missing and NotAccepted."""
    run = find_run(place, name)
    scale = run["spec"]["scale"]
    least, before = int(scale["minNodes"]), int(scale["maxNodes"])
    if over := outcome_of(status_of(run)):
        raise NotAccepted(
            f"run {name}: is over ({over}), so its size changes nothing\n  hint: make a new run"
        )
    if not least <= most <= MOST_NODES:
        bound = f"less than spec.scale.minNodes ({least})" if most < least else f"more than {MOST_NODES}"
        raise NotAccepted(
            f"--max {most}: is {bound}\n  hint: a number from {least} to {MOST_NODES}; a run stops when it is deleted"
        )
    if most != before:
        body = {"spec": {"replicas": most}}
        place.api.patch(f"{runs_path(place.namespace, name)}/scale", body)
    return Scaled(name, place.namespace, before, most, _note(place, run, most))


def _note(place: Place, run: dict[str, Any], most: int) -> str:
    """What the plan, which is frozen, makes of this size; "" when it uses all of it, or cannot be looked at."""
    revision = (status_of(run).get("resolved") or {}).get("revision")
    if not revision:
        return ""
    try:
        found = place.api.get(records_path(place.namespace, revision))
        record = records.from_object(Revision, found or {}, run["metadata"]["uid"])
    except (Refused, Unavailable, WireError):
        return ""
    return _what_is_used(record.rungs, most, revision) if record is not None else ""


def _what_is_used(rungs: tuple[Rung, ...], most: int, revision: str) -> str:
    useful = max((rung.nodes for rung in rungs if rung.useful and rung.nodes <= most), default=0)
    if most > rungs[-1].nodes:
        ends = f"the plan of {revision}, which is frozen, ends at {counted(rungs[-1].nodes, 'node')}"
        return f"{ends}: of {most}, {useful} will train"
    if useful < most:
        why = next((rung.reason for rung in rungs if rung.nodes == most), "")
        return f"of {counted(most, 'node')}, {useful} will train{f': {why}' if why else ''}"
    return ""
