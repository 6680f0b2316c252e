"""Builds the record of a new epoch from its proposal: pure, called by the proposer when everyone
acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainingrun.membership.evidence import damage
from trainingrun.membership.roster import Seat
from trainingrun.membership.scene import Scene
from trainingrun.protocol import names
from trainingrun.protocol.records import Epoch, EpochSummary, Restore, Revision, Rung, Store


def build_record(
    scene: Scene,
    revision: Revision,
    rung: Rung,
    members: Sequence[Seat],
    restore: Restore,
    nonce: str,
    wall: float,
) -> Epoch:
    """The record of epoch current + 1. `members` in the order of their ranks; `wall`: seconds since 1970."""
    number = scene.lineage.epoch + 1
    first = members[0].join
    current = scene.current
    kept = scene.lineage.sessions
    evidence, previous = scene.evidence, _previous(scene)
    return Epoch(
        name=names.epoch_name(scene.run, number),
        run=scene.run,
        run_uid=scene.run_uid,
        epoch=number,
        revision=revision.name,
        nonce=nonce,
        created_at=wall,
        members=tuple(seat.as_member() for seat in members),
        rung=rung,
        store=Store(first.address, first.store_port, f"e{number}/"),
        restore=restore,
        trigger=evidence.trigger,
        detected_at=_detected_at(scene, members, kept, wall),
        lost=tuple(sorted((loss.lost for loss in evidence.losses.values()), key=lambda lost: lost.slot)),
        exits=tuple(evidence.exits[key] for key in sorted(evidence.exits)),
        damaged=tuple(sorted(damage(scene.lineage, evidence, scene.roster))),
        previous=previous,
        shares_member=current is None or _vouched_for(current, previous, members, kept),
    )


def _vouched_for(
    current: Epoch, previous: EpochSummary, members: Sequence[Seat], kept: frozenset[str]
) -> bool:
    """Is a member left that knows the writers before it to be dead? An epoch that had to write a fence and never
    stepped may not have written it: its successor has to.
    """
    fenced = current.shares_member or previous.first_step_at > 0
    return fenced and any(seat.session in kept for seat in members)


def _detected_at(scene: Scene, members: Sequence[Seat], kept: frozenset[str], wall: float) -> float:
    seen = scene.evidence.first_seen_wall
    if seen is not None:
        return seen
    return min((seat.ready_wall for seat in members if seat.session not in kept), default=wall)


def _previous(scene: Scene) -> EpochSummary:
    """As last reported. A checkpoint that is known only from elsewhere is added: no record may forget it."""
    if scene.current is None:
        return EpochSummary()
    progress = scene.current_progress
    summary = progress.summary if progress else EpochSummary(epoch=scene.current.epoch)
    if not summary.durable and scene.lineage.durable:
        name, step = max(scene.lineage.durable.items(), key=lambda item: (item[1], item[0]))
        summary = replace(summary, durable=name, durable_step=step)
    return summary
