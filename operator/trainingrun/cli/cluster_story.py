"""Everything that is known of one run, put together: what `describe` shows. Reads, and decides nothing.

`read_story` asks the cluster; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api.constants import ConditionType
from trainingrun.cli.cluster_access import Notes, Place, find_run
from trainingrun.cli.cluster_events import ClusterEvent, event_json, events_of
from trainingrun.cli.cluster_pods import pod_json, pods_of
from trainingrun.cli.cluster_state import outcome_of, state_word, status_of, unseen_change, worries
from trainingrun.cli.cluster_timeline import EpochStory, read_epochs, timeline
from trainingrun.cli.report import condition
from trainingrun.cluster.kubernetes.objects import NODES, PODS, core_path, records_path, selector
from trainingrun.ports import Pod
from trainingrun.protocol.records import Epoch

SCHEMA_VERSION = 1
"""Of the JSON and YAML of the verbs against a cluster. Fields are added; a changed or removed one raises it."""

_NOT_FOR_PEOPLE = ("conditions", "accounting", "observedGeneration")


@dataclass(frozen=True)
class Story:
    run: Mapping[str, Any]  # the TrainingRun as stored
    epochs: tuple[EpochStory, ...]  # ascending
    pods: tuple[Pod, ...]
    events: tuple[ClusterEvent, ...]  # oldest first
    notes: tuple[str, ...]  # what could not be looked at, and what the reader should know

    @property
    def status(self) -> Mapping[str, Any]:
        return status_of(self.run)

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.run.get("spec") or {}

    def to_json(self) -> dict[str, Any]:
        """The blocks of the status as they are there, the records, pods and events beside them."""
        meta, status = self.run["metadata"], self.status
        ready = condition(status, ConditionType.READY)
        blocks = {key: value for key, value in status.items() if key not in _NOT_FOR_PEOPLE}
        scale = self.spec.get("scale") or {}
        return {
            "schemaVersion": SCHEMA_VERSION,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "created": meta.get("creationTimestamp"),
            "generation": meta.get("generation", 0),
            "observedGeneration": status.get("observedGeneration", 0),
            "task": self.spec.get("task"),
            "state": state_word(self.run),
            "ready": ready.get("status") == "True",
            "message": ready.get("message", ""),
            "since": ready.get("lastTransitionTime"),
            "outcome": outcome_of(status) or None,
            "scale": {"minNodes": scale.get("minNodes"), "maxNodes": scale.get("maxNodes")},
            **blocks,
            "conditionsNotAsTheyShouldBe": [dict(one) for one in worries(self.run)],
            "epochs": [epoch.to_json() for epoch in self.epochs],
            "pods": [pod_json(pod) for pod in self.pods],
            "events": [event_json(event) for event in self.events],
            "notes": list(self.notes),
        }


def read_story(place: Place, name: str) -> Story:
    """Raises Missing. What may not be looked at is left out, and a note says so."""
    run = find_run(place, name)
    uid, namespace, notes = run["metadata"]["uid"], place.namespace, Notes()
    epochs_only = selector(RUN_UID=uid, RECORD=Epoch.__name__)
    records = notes.try_list(place, "epochs", records_path(namespace), epochs_only)
    epochs, unread = read_epochs(records or (), uid)
    notes.texts += unread
    pods = notes.try_list(place, "pods", core_path(PODS, namespace), selector(RUN_UID=uid)) or []
    nodes = notes.try_list(place, "nodes", NODES) if pods else None
    events = notes.try_list(place, "events", core_path("events", namespace))
    if change := unseen_change(run):
        notes.texts.append(change)
    return Story(
        run=run,
        epochs=timeline(epochs, status_of(run)),
        pods=tuple(pods_of(run, pods, place.now(), nodes)),
        events=tuple(events_of(run, events or ())),
        notes=tuple(notes.texts),
    )
