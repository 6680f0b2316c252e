"""decide(observed, now) -> Decision: all that the controller wants of the world, from one look at it.

    1. A run that is gone or being deleted: nothing. Its children go with it.
    2. A run that is over: remove what still runs. Nothing is created any more and status stays as it is.
    3. No revision yet: refuse an invalid spec, wait for its claims, have it planned, freeze the plan in revision r1.
       Never a second time: the revision of a run that has begun can only be put back.
    4. Fold the epoch records that are new into the counters, each once.
    5. Over now? The last words of a pod say that the run is finished or can never be; or a limit is spent.
    6. Tune: measurements may call for a further revision, which later epochs begin with.
    7. Seats: delete and create pods, so that each seat has one that can work. Not for a run that is over.
    8. Status: everything that follows from the steps before.
    9. Events: what changed, for people.

An invalid spec does not touch a run that has a revision: it goes on with the frozen one and says so.

Pure: no clock, no I/O, no logger. It must never depend on what an earlier call decided, only on what is
observed: the controller may die after any single effect, and the next one goes on from there. Called by
`reconcile`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from trainingrun.api.constants import EventReason
from trainingrun.control.claims import claim_problem
from trainingrun.control.completion import completed_at, final_words, hopeless, is_terminal
from trainingrun.control.counters import Counters, read_counters
from trainingrun.control.effects import CreateRevision, Decision, Effect, EmitEvent, MakePlan, WriteStatus
from trainingrun.control.folding import Failure, Folded, fold, note_first_step
from trainingrun.control.ledger import with_last_epoch, with_running_epoch
from trainingrun.control.observed import Observed, PlanResult
from trainingrun.control.policy import Policy
from trainingrun.control.refusals import not_before
from trainingrun.control.remembered import steps_known
from trainingrun.control.reporting import Report, build_status, worth_writing
from trainingrun.control.resizing import resizes
from trainingrun.control.seats import SeatChanges, fill_seats, remove_live
from trainingrun.control.state import assess
from trainingrun.control.telling import tell_epochs, tell_refusals, tell_status
from trainingrun.control.tuning import Tuned, tune
from trainingrun.ports import EventRecord
from trainingrun.protocol import wire
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.names import revision_name
from trainingrun.protocol.records import Revision

DEFAULT_POLICY = Policy()


def decide(observed: Observed, now: float, policy: Policy = DEFAULT_POLICY) -> Decision:
    """Effects in the order of their application. `now` is in seconds since 1970."""
    run = observed.run

    # 1. gone
    if run.deleting:
        return Decision()

    # 2. over
    if is_terminal(run.status):
        return _after_the_end(observed, now, policy)

    # 3. no revision
    if observed.revision is None:
        return _begin(observed, now, policy)

    # 4. account
    old = read_counters(run.status)
    final = final_words(observed, observed.revision.spec)
    folded = fold(observed, old, now, policy, wait=final is None)
    counters = _with_newest_step(observed, folded, final)

    # 5. over now?
    failure = None if final is not None else hopeless(observed) or folded.failure

    # 6. tune
    tuned = Tuned(counters.look)
    if final is None and failure is None:
        tuned = _tune(observed, folded, counters)
    counters = replace(counters, look=tuned.look)

    # 7. seats
    seats = SeatChanges()
    if final is None and failure is None:
        seats = fill_seats(observed, observed.revision, now, policy)

    # 8. status
    status, changed = _status(observed, counters, failure, final, now, policy)

    # 9. events
    events: list[EventRecord] = []
    if changed:
        events = tell_epochs(observed, folded.folded, old, counters, now)
        events += [*tell_refusals(observed, now), *tell_status(run.status, status, now)]
    effects: list[Effect] = [*seats.effects]
    if tuned.revision is not None:
        effects.append(CreateRevision(tuned.revision))
        text = f"{tuned.revision.name}: {tuned.reason}"
        events.append(EventRecord(now, "Normal", EventReason.PLANNED, text))
    if changed:
        effects.append(WriteStatus(status))
    effects += [EmitEvent(event) for event in (*seats.events, *events)]
    # Progress is not announced: it is asked for.
    return Decision(effects, _earliest(seats.revisit_at, folded.revisit_at, now + policy.progress_seconds))


def _tune(observed: Observed, folded: Folded, counters: Counters) -> Tuned:
    """Step 6, by the newest record that was accounted for just now."""
    if not folded.folded:
        return Tuned(counters.look)
    before = folded.folded[-2] if len(folded.folded) > 1 else observed.last
    return tune(observed, counters, before, folded.folded[-1])


def _after_the_end(observed: Observed, now: float, policy: Policy) -> Decision:
    """Step 2. The last pods of a complete run are about to end by themselves; deleted, they would take their
    logs along.
    """
    leave_by = completed_at(observed.run.status) + policy.leaving_seconds
    effects = remove_live(observed, "the run is over")
    return Decision(revisit_at=leave_by) if effects and now < leave_by else Decision(effects)


def _begin(observed: Observed, now: float, policy: Policy) -> Decision:
    """Step 3: a run that was not planned yet. Its status says why not, from the first visit on."""
    run = observed.run
    effects: list[Effect] = []
    events: list[EventRecord] = []
    revisit_at: float | None = None
    if observed.lost_revision or claim_problem(observed) is not None:
        revisit_at = now + policy.claim_seconds  # nobody tells of a claim or a record that appears
    elif observed.spec is not None and not observed.taken_revision:
        again = not_before(observed.refused_record, observed, policy)
        if observed.plan is None:
            effects.append(MakePlan(observed.spec))
        elif again > now:
            revisit_at = again
        elif isinstance(observed.plan, PlanResult):
            revision = first_revision(observed, observed.plan)
            text = f"{revision.name}: {observed.plan.reason or 'planned'}"
            effects.append(CreateRevision(revision))
            events.append(EventRecord(now, "Normal", EventReason.PLANNED, text))
    status, changed = _status(observed, read_counters(run.status), None, None, now, policy)
    if changed:
        effects.append(WriteStatus(status))
        events += [*tell_refusals(observed, now), *tell_status(run.status, status, now)]
    return Decision([*effects, *(EmitEvent(event) for event in events)], revisit_at)


def first_revision(observed: Observed, plan: PlanResult) -> Revision:
    """Revision r1: the resolved spec, its plan and its pods' template, frozen. The nonce is a digest of its content."""
    spec = dict(observed.spec or {})
    template = dict(observed.pod_template)
    content = [observed.run.uid, spec, wire.to_json(plan.rungs), plan.planner_version, template]
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
    return Revision(
        name=revision_name(observed.run.name, 1),
        run=observed.run.name,
        run_uid=observed.run.uid,
        revision=1,
        spec=spec,
        rungs=plan.rungs,
        plan=dict(plan.plan),
        planner_version=plan.planner_version,
        nonce=digest,
        pod_template=template,
    )


def _with_newest_step(observed: Observed, folded: Folded, final: Termination | None) -> Counters:
    """The counters, with the time of the newest recovery as soon as its first step is known."""
    newest = folded.folded[-1] if folded.folded else observed.last
    counters = folded.counters
    if observed.view is not None and observed.view.progress is not None:
        counters = note_first_step(counters, newest, observed.view.progress.summary)
    return counters if final is None else note_first_step(counters, newest, final.summary)


def _status(
    observed: Observed,
    counters: Counters,
    failure: Failure | None,
    final: Termination | None,
    now: float,
    policy: Policy,
) -> tuple[dict[str, object], bool]:
    """Step 8: the status, and whether it is worth writing."""
    epoch = observed.epoch
    running = epoch is not None and epoch.epoch == counters.accounted_epoch  # or it waits to be folded
    ledger = counters.ledger
    created, sizes = observed.run.created_at, resizes(observed)
    if final is not None:
        ledger = with_last_epoch(ledger, created, epoch, final.summary, now, sizes)
        counters = replace(counters, ledger=ledger)
    elif running or epoch is None:
        known = steps_known(observed)
        heard = observed.view is not None and observed.view.progress is not None
        # Nobody can tell of steps while membership is away: that is no silence of the ranks.
        at = now if heard or known is None else min(now, known.last_step_at)
        ledger = with_running_epoch(ledger, created, epoch, known, at, sizes)
    state = assess(observed, failure, final is not None, now, policy)
    status = build_status(Report(observed, counters, ledger, state, failure, final), now, policy)
    return status, worth_writing(observed.run.status, status, now, policy)


def _earliest(*times: float | None) -> float:
    return min(time for time in times if time is not None)
