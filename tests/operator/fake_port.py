"""A world in memory for tests of the controller: runs, pods, nodes, records and a simple membership service.

`FakeWorld` implements `ControlPort`. Time stands still until `at` is moved. `die_after` lets the
controller be killed after so many effects, by an exception that nothing catches.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.operator.fake_nodes import Nodes

from trainingrun.ports import (
    Claim,
    Conflict,
    EventRecord,
    Node,
    Pod,
    PodPhase,
    PodTemplate,
    Refused,
    RunObject,
    Unavailable,
)
from trainingrun.protocol.messages import (
    AgentPhase,
    DurableCheckpoint,
    MemberView,
    Progress,
    RunView,
)
from trainingrun.protocol.names import epoch_name, pod_name
from trainingrun.protocol.records import (
    Epoch,
    EpochSummary,
    Lost,
    Member,
    RankExit,
    Restore,
    RestoreSource,
    Revision,
    Rung,
    Store,
    Trigger,
)

RUN = "demo"
UID = "uid-demo"


class ControllerKilled(Exception):
    """The controller's process died here."""


class FakeWorld(Nodes):
    def __init__(self, manifest: Mapping[str, Any], nodes: int = 2, at: float = 1_000_000.0) -> None:
        self.at = at
        self.run: RunObject | None = RunObject(RUN, UID, 1, "1", copy.deepcopy(dict(manifest)), {}, False, at)
        self.pod_list: dict[str, Pod] = {}
        self.node_map = {f"node-{i}": Node(f"node-{i}", True) for i in range(nodes)}
        self.claim_map: dict[str, Claim] = {}
        self.revision_list: list[Revision] = []
        self.epoch_list: list[Epoch] = []
        self.foreign_records: set[str] = set()
        self.view: RunView | None = None
        self.membership_away = False
        self.unavailable = False
        self.events: list[EventRecord] = []
        self.effects = 0
        self.die_after: int | None = None
        self.created: list[str] = []
        self.reborn: list[str] = []  # names of pods that had trained and were created again
        self.status_writes = 0
        self.quota: int | None = None  # most pods that may count at once
        self.refusal: Refused | None = None  # of every pod
        self.record_refusal: Refused | None = None
        self.event_refusal: Refused | None = None
        self.tries = 0  # to create a pod, refused ones included
        self.asked: list[str] = []  # names of calls that are worth sparing
        self.silent_nodes: set[str] = set()  # membership does not hear them
        self.stuck: set[str] = set()  # names of pods that stay Terminating

    # ---- ControlPort

    def run_keys(self) -> Sequence[str]:
        return [RUN] if self.run is not None else []

    def get_run(self, name: str) -> RunObject | None:
        if self.unavailable:
            raise Unavailable("the API server is away")
        return copy.deepcopy(self.run) if name == RUN else None

    def run_exists(self, run_uid: str) -> str | None:
        return RUN if self.run is not None and run_uid == UID else None

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        saved = ((self.run.status if self.run else {}).get("checkpoint") or {}).get("durable")
        return DurableCheckpoint(saved["manifest"], saved["epoch"], saved["step"]) if saved else None

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        return [record for record in self.revision_list if record.run_uid == run_uid]

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        return [record for record in self.epoch_list if record.run_uid == run_uid and record.epoch > after]

    def create(self, record: Revision | Epoch) -> None:
        self._effect()
        if self.record_refusal is not None:
            raise self.record_refusal
        names = {one.name for one in (*self.revision_list, *self.epoch_list)} | self.foreign_records
        if record.name in names:
            raise Conflict(f"{record.name} exists")
        if isinstance(record, Revision):
            self.revision_list.append(record)
        else:
            self.epoch_list.append(record)

    def pods(self, run: str) -> Sequence[Pod]:
        return list(self.pod_list.values())

    def nodes(self) -> Sequence[Node]:
        return list(self.node_map.values())

    def membership(self, run_uid: str) -> RunView | None:
        self.asked.append("membership")
        return None if self.membership_away else self.view

    def create_pod(self, template: PodTemplate) -> None:
        self._effect()
        name = pod_name(template.run, template.slot, template.incarnation)
        self.tries += 1
        self._admit(name)
        if name in self.pod_list:
            raise Conflict(f"{name} exists")
        seat = (template.slot, template.incarnation)
        if any(
            seat == (member.slot, member.incarnation) for one in self.epoch_list for member in one.members
        ):
            self.reborn.append(name)
        self.created.append(name)
        self.pod_list[name] = Pod(
            name=name,
            uid=f"uid-{name}",
            run_uid=template.run_uid,
            slot=template.slot,
            incarnation=template.incarnation,
            revision=template.revision,
            phase=PodPhase.PENDING,
            node="",
            ready=False,
            terminating=False,
            restarts=0,
            created_at=self.at,
        )

    def delete_pod(self, key: str, name: str, uid: str) -> None:
        self._effect()
        pod = self.pod_list.get(name)
        if pod is not None and pod.uid == uid:
            self.pod_list[name] = dataclasses.replace(pod, terminating=True)

    def write_status(self, name: str, status: Mapping[str, Any], resource_version: str) -> None:
        self._effect()
        if self.run is None or self.run.resource_version != resource_version:
            raise Conflict("the run changed")
        self.status_writes += 1
        version = str(int(resource_version) + 1)
        self.run = dataclasses.replace(self.run, status=copy.deepcopy(dict(status)), resource_version=version)

    def emit(self, run: str, event: EventRecord) -> None:
        self._effect()
        if self.event_refusal is not None:
            raise self.event_refusal
        self.events.append(event)

    def wait_for_change(self, timeout_seconds: float) -> Collection[str] | None:
        self.at += timeout_seconds
        return None

    def claims(self, key: str, names: Collection[str]) -> Mapping[str, Claim | None]:
        self.asked.append("claims")
        return {name: self.claim_map.get(name) for name in names}

    def pod_template(self, run: RunObject, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append("pod_template")
        return {"rendered": "once"}

    def _admit(self, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        ended = (PodPhase.SUCCEEDED, PodPhase.FAILED)
        used = sum(pod.phase not in ended for pod in self.pod_list.values())
        if self.quota is not None and used >= self.quota:
            text = f"exceeded quota: few, requested: pods=1, used: pods={used}, limited: pods={self.quota}"
            raise Refused("Forbidden", f'pods "{name}" is forbidden: {text}')

    # ---- what happens to it

    @property
    def status(self) -> Mapping[str, Any]:
        assert self.run is not None
        return self.run.status

    def touch(self) -> None:
        """Somebody else changes the object."""
        assert self.run is not None
        version = str(int(self.run.resource_version) + 1)
        self.run = dataclasses.replace(self.run, resource_version=version)

    def live(self, slot: int) -> list[Pod]:
        phases = (PodPhase.PENDING, PodPhase.RUNNING)
        return [
            pod
            for pod in self.pod_list.values()
            if pod.slot == slot and pod.run_uid == UID and pod.phase in phases and not pod.terminating
        ]

    # ---- membership, much simplified: an epoch of whoever runs

    def membership_round(
        self, exits: tuple[RankExit, ...] = (), step_seconds: float = 0.1, last_words: str = ""
    ) -> None:
        """Make an epoch if the members changed or ranks died; otherwise report progress."""
        running = [
            pod
            for pod in self.pod_list.values()
            if pod.phase is PodPhase.RUNNING and not pod.terminating and pod.node not in self.silent_nodes
        ]
        running = sorted((pod for pod in running if pod.run_uid == UID), key=lambda pod: pod.slot)
        if not self.revision_list or not running:
            return
        last = self.epoch_list[-1] if self.epoch_list else None
        now_seats = {(pod.slot, pod.incarnation) for pod in running}
        old_seats = {(member.slot, member.incarnation) for member in last.members} if last else set()
        if last is None or now_seats != old_seats or exits:
            self._new_epoch(running, last, now_seats, exits)
            return
        summary = self._summary(last, step_seconds)
        self.view = self._view(last, running, summary)

    def _summary(self, epoch: Epoch, step_seconds: float = 0.1) -> EpochSummary:
        first = epoch.created_at + 0.5
        steps = max(0, int((self.at - first) / step_seconds) + 1)
        if steps == 0:
            return EpochSummary(epoch=epoch.epoch)
        return EpochSummary(
            epoch=epoch.epoch,
            first_step_at=first,
            first_step=epoch.restore.step + 1,
            last_step=epoch.restore.step + steps,
            last_step_at=first + (steps - 1) * step_seconds,
            step_seconds=step_seconds,
            restore_seconds=0.2,
        )

    def _new_epoch(
        self, running: list[Pod], last: Epoch | None, seats: set[tuple[int, int]], exits: tuple[RankExit, ...]
    ) -> None:
        number = last.epoch + 1 if last else 1
        lost = tuple(
            Lost(member.slot, member.incarnation, member.node, "Silent")
            for member in (last.members if last else ())
            if (member.slot, member.incarnation) not in seats
        )
        previous = self._summary(last) if last else EpochSummary()
        step = previous.last_step // 5 * 5 if previous.last_step else (last.restore.step if last else 0)
        source = RestoreSource.MEMORY if step else RestoreSource.INITIAL
        trigger = Trigger.STARTED
        if last is not None:
            trigger = Trigger.MEMBER_LOST if lost else Trigger.PROCESS_DIED if exits else Trigger.JOINED
        rungs = self.revision_list[-1].rungs
        self.create_record(
            Epoch(
                name=epoch_name(RUN, number),
                run=RUN,
                run_uid=UID,
                epoch=number,
                revision=self.revision_list[-1].name,
                nonce=f"n{number}",
                created_at=self.at,
                members=tuple(
                    Member(pod.slot, pod.incarnation, f"s-{pod.name}", pod.node, "127.0.0.1", 1)
                    for pod in running
                ),
                rung=next((rung for rung in rungs if rung.nodes == len(running)), rungs[-1]),
                store=Store("127.0.0.1", 1, f"e{number}"),
                restore=Restore(source, step, last.epoch if last and step else 0),
                trigger=trigger,
                detected_at=max(self.at - 0.3, last.created_at if last else 0.0),
                lost=lost,
                exits=exits,
                previous=previous,
            )
        )
        self.view = self._view(self.epoch_list[-1], running, EpochSummary(epoch=number))

    def create_record(self, record: Epoch) -> None:
        self.epoch_list.append(record)

    def _view(self, epoch: Epoch, running: list[Pod], summary: EpochSummary) -> RunView:
        seats = {(member.slot, member.incarnation) for member in epoch.members}
        members = tuple(
            MemberView(
                pod.slot,
                pod.incarnation,
                pod.node,
                AgentPhase.RUNNING,
                epoch.epoch,
                "",
                0.0,
                (pod.slot, pod.incarnation) in seats,
            )
            for pod in running
        )
        progress = None
        if summary.first_step_at:
            progress = Progress(summary.last_step, 2.5, summary.last_step * 4096, 40960.0, 1e-3, 300, summary)
        return RunView(UID, epoch.epoch, members, progress, False, "", "", None, False)

    def _effect(self) -> None:
        """Every change counts; the controller may be killed before it."""
        if self.die_after is not None and self.effects >= self.die_after:
            raise ControllerKilled
        self.effects += 1


def a_rung(nodes: int, *, useful: bool = True) -> Rung:
    return Rung(
        nodes=nodes,
        processes_per_node=2,
        pipeline=1,
        replicate=nodes,
        shard=1,
        tensor=2,
        micro_batch=4,
        accumulation=max(1, 8 // nodes),
        padding_sequences=0,
        state_copies=nodes,
        useful=useful,
    )
