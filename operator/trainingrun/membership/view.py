"""What membership tells the controller about a run. Pure."""

from __future__ import annotations

from trainingrun.membership.proposal import Proposer
from trainingrun.membership.restore import newest_in_memory
from trainingrun.membership.scene import Scene
from trainingrun.protocol.messages import MemberView, RunView


def view_of(scene: Scene, proposer: Proposer, now: float) -> RunView:
    members = tuple(
        MemberView(
            slot=seat.slot,
            incarnation=seat.join.incarnation,
            node=seat.join.node,
            phase=seat.phase,
            epoch=seat.epoch,
            activity=seat.report.activity if seat.report else "",
            silent_seconds=round(max(0.0, now - seat.heard_at), 3),
            in_epoch=scene.in_epoch(seat),
        )
        for seat in scene.roster.seats
    )
    held = {seat.slot: seat.report.snapshots for seat in scene.roster.seats if seat.report}
    return RunView(
        run_uid=scene.run_uid,
        epoch=scene.lineage.epoch,
        members=members,
        progress=scene.progress,
        proposing=proposer.proposal is not None,
        waiting_for="" if scene.complete else proposer.waiting_for,
        blocked=proposer.blocked,
        restore=scene.current.restore if scene.current else None,
        suspicious_of_self=scene.suspicious,
        memory_step=newest_in_memory(held, scene.lineage.damaged),
    )
