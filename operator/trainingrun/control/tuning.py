"""Whether what an epoch measured changes how its size trains from the next epoch on: the next revision, or none.

A revision is never changed, but a run may get a further one, with the same spec, template, axes and sizes: only the
micro-batch of a size that was measured (or ran out of memory), and what is computed twice where the run left that
open, may differ. It counts from the next epoch on; nothing is ever stopped for it. What was tried before is not tried
again, so this ends. A plan of another version of the planner is left alone: its predictions were others. Pure; called
by `decide` when a record was folded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainingrun.api.constants import Cause
from trainingrun.control.counters import Counters
from trainingrun.control.measured import Look, measurements
from trainingrun.control.observed import Observed
from trainingrun.planner.feedback import Names, factors_of
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.keeping import Situation
from trainingrun.planner.retuning import retuned
from trainingrun.planner.search import PLANNER_VERSION
from trainingrun.planner.text import counted
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape
from trainingrun.planner.weighing import as_chosen, weigh
from trainingrun.protocol import wire
from trainingrun.protocol.names import revision_name
from trainingrun.protocol.records import NATIVE, Epoch, Revision, Rung


@dataclass(frozen=True)
class Tuned:
    look: Look  # to be remembered
    revision: Revision | None = None
    reason: str = ""


def tune(observed: Observed, counters: Counters, ended: Epoch | None, record: Epoch) -> Tuned:
    """`ended` is the epoch that `record` ended, and that was just accounted for."""
    revision, look = observed.revision, counters.look
    if revision is None or ended is None or not _may(observed, revision, ended):
        return Tuned(look)
    model, training, inventory = planner_inputs(revision.spec)
    rung = next((one for one in revision.rungs if one.nodes == ended.rung.nodes), None)
    if rung is None or _way(rung) != _way(ended.rung):
        return Tuned(look)  # a further revision exists already, and has not been taken up yet
    tried = _tried(revision, rung)
    node = inventory.node
    names = Names.of(model, training, node, rung)
    own = measurements(revision, counters.measured)
    decision, other = retuned(
        model,
        training,
        node,
        rung,
        factors_of(own, names, planner_version=PLANNER_VERSION),
        _situation(observed, counters, record, rung, look),
        tried=tried,
    )
    if not decision.change:
        return Tuned(Look(rung.nodes, *_way(rung), decision.looks) if decision.looks else Look())
    fresh = _next(revision, rung, other, decision.reason, (model, training, node), tried)
    return Tuned(
        Look(), fresh, f"{counted(rung.nodes, 'node')}: {_text(rung)} -> {_text(other)}: {decision.reason}"
    )


def _may(observed: Observed, revision: Revision, ended: Epoch) -> bool:
    return (
        revision.planner_version == PLANNER_VERSION
        and observed.refused_record is None
        and ended.rung.engine == NATIVE
        and bool(revision.plan.get("rungs"))
    )


def _situation(observed: Observed, counters: Counters, record: Epoch, rung: Rung, look: Look) -> Situation:
    steps = next((one.steps for one in counters.measured if one.nodes == rung.nodes), 0)
    total = int((observed.run.status.get("progress") or {}).get("totalSteps", 0))
    newest = counters.recent[-1] if counters.recent else None
    same = (look.nodes, look.micro_batch, look.recompute) == (rung.nodes, *_way(rung))
    return Situation(
        measured_steps=steps,
        remaining_steps=max(0, total - record.restore.step),
        stop_seconds=0.0,
        reshape_seconds=0.0,
        starts_anyway=True,
        ran_out=newest is not None
        and newest.epoch == record.epoch
        and newest.cause == Cause.OUT_OF_MEMORY.value,
        looks=look.looks if same else 0,
    )


def _way(rung: Rung) -> tuple[int, str]:
    """All that may differ between two revisions of a run."""
    return rung.micro_batch, rung.activation_checkpointing


def _text(rung: Rung) -> str:
    return f"micro-batch {rung.micro_batch}, recomputation {rung.activation_checkpointing}"


def _tried(revision: Revision, rung: Rung) -> frozenset[tuple[int, str]]:
    item = _planned(revision.plan, rung.nodes)
    return frozenset((int(size), str(mode)) for size, mode in item.get("tried") or [])


def _planned(plan: Mapping[str, Any], nodes: int) -> Mapping[str, Any]:
    return next((item for item in plan.get("rungs") or [] if item["rung"]["nodes"] == nodes), {})


def _next(
    revision: Revision,
    rung: Rung,
    other: Rung,
    reason: str,
    question: tuple[ModelShape, TrainingShape, NodeShape],
    tried: frozenset[tuple[int, str]],
) -> Revision:
    """The revision after this one. Predictions in it are as the planner makes them, not corrected."""
    model, training, node = question
    weighed = weigh(model, as_chosen(training, other), node, other)
    old = _planned(revision.plan, rung.nodes)
    item = {
        **old,
        "rung": wire.to_json(other),
        "memory": wire.to_json(weighed.memory),
        "stepSeconds": weighed.step_seconds,
        "tokensPerSecond": weighed.tokens_per_second,
        "reasons": [*old.get("reasons", ()), f"measured: {reason}"],
        "tried": sorted([list(one) for one in {*tried, _way(rung)}]),
    }
    plan = {
        **revision.plan,
        "rungs": [item if one["rung"]["nodes"] == rung.nodes else one for one in revision.plan["rungs"]],
    }
    number = revision.revision + 1
    rungs = tuple(other if one.nodes == rung.nodes else one for one in revision.rungs)
    return replace(
        revision,
        name=revision_name(revision.run, number),
        revision=number,
        rungs=rungs,
        plan=plan,
        nonce=_nonce(revision, rungs),
    )


def _nonce(revision: Revision, rungs: Sequence[Rung]) -> str:
    content = [revision.run_uid, revision.nonce, wire.to_json(tuple(rungs))]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
