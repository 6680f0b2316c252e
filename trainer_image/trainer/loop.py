"""The training of one epoch on one rank: restore, step until done or paused, save, export.

`Run` holds what a rank needs; `train` is the loop. What happens after a step was agreed in the step's own
all-reduce, so that all ranks do the same. Errors are not handled here: whoever started the rank reports
them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from transformers import PretrainedConfig

from trainer.checkpoint.errors import SaveFailed
from trainer.checkpoint.restore import from_durable, from_snapshots
from trainer.checkpoint.snapshot_format import snapshot_name
from trainer.config import TrainerConfig, numerics
from trainer.data.prefetch import Prefetch
from trainer.data.prepare import PreparedData
from trainer.engine import Runner
from trainer.errors import CheckpointDamaged, ConfigError
from trainer.export import export
from trainer.job import Mailbox, RankJob, Result
from trainer.keeping import DurableKeeper, SnapshotKeeper
from trainer.mesh import Axes
from trainer.metrics import MetricsLog
from trainer.peak import PeakMeter, due
from trainer.policy import DurablePolicy, SnapshotPolicy
from trainer.report import Reporter
from trainer.schedule import Schedule
from trainer.state import TrainingState
from trainer.step import StepResult, Votes
from trainingrun.protocol import names
from trainingrun.protocol.records import RestoreSource

log = logging.getLogger(__name__)

FINAL_SAVE_WAITS = (
    2.0,
    5.0,
    10.0,
    20.0,
    40.0,
)  # seconds; the last step must not be lost to a moment's trouble


@dataclass
class Run:
    job: RankJob
    local_rank: int
    config: TrainerConfig
    axes: Axes
    data: PreparedData
    reader: Prefetch
    runner: Runner
    fill: Callable[[], None]  # with the weights that step 1 begins with
    state: TrainingState
    schedule: Schedule
    model: PretrainedConfig
    snapshots: SnapshotKeeper
    durable: DurableKeeper
    snapshot_policy: SnapshotPolicy
    durable_policy: DurablePolicy
    reporter: Reporter
    metrics: MetricsLog
    mailbox: Mailbox
    peak: PeakMeter

    @property
    def leads(self) -> bool:
        """Rank 0 of the run: it votes for checkpoints, reports and exports."""
        return self.axes.rank == 0


def train(run: Run) -> Result:
    """The loop. Collective over the run; the result as this rank sees it."""
    restore(run)
    while run.state.step < run.config.training.total_steps:
        started = time.monotonic()
        step = run.state.step + 1
        learning_rate = run.schedule.learning_rate(run.state.schedule_step)
        result = run.runner.run(
            step, run.reader.step(step), learning_rate=learning_rate, votes=votes(run, step, started)
        )
        run.state.advance(result, learning_rate=learning_rate, samples=run.config.training.global_batch)
        after_collective(run, result.agreed)
        note_peak(run)
        account(run, result, learning_rate, time.monotonic() - started)
        note_saved(run)
        if run.snapshots.on and (result.agreed.snapshot or result.agreed.pause):
            snapshot(run)
        if step == run.config.training.total_steps:
            break
        if result.agreed.durable:
            begin_save(run)
        if result.agreed.pause and hand_over(run):
            return paused(run)
    return done(run)


def restore(run: Run) -> None:
    started = time.monotonic()
    point = run.job.record.restore
    say(run, "restoring" if point.source is not RestoreSource.INITIAL else "starting")
    if point.source is RestoreSource.INITIAL:
        run.fill()
        run.state.filled(initial=True)
    else:
        if point.source is RestoreSource.MEMORY:
            scalars = from_snapshots(run.job.restore_files, point.epoch, point.step, run.state.tensors())
        else:
            scalars = from_durable(run.config.checkpoint.location, point.manifest, run.state.tensors())
        check_data(scalars, run.state.data)
        run.state.load_scalars(scalars)
        run.state.filled(initial=False)
        if run.state.step != point.step:
            name = point.manifest or snapshot_name(point.epoch, point.step)
            raise CheckpointDamaged(name, f"it holds step {run.state.step}, not {point.step}")
    run.reporter.restored(time.monotonic() - started)
    run.metrics.write(run.state.step, numerics=numerics(run.config, run.job.record.rung))
    say(run, "")


def check_data(scalars: Mapping[str, Any], fingerprint: str) -> None:
    """Raises ConfigError when a restore point was trained on other data: its position in the order, and the
    tokens that its embedding knows, mean nothing in this one.
    """
    before = scalars.get("data") or fingerprint
    if before != fingerprint:
        raise ConfigError(
            "spec.data.sources",
            fingerprint,
            f"not the data that the run was trained on until step {scalars['step']} ({before}); a source or the "
            "tokenizer has changed",
            "put it back as it was, or begin a new run at another spec.checkpoint.location.uri",
        )


def votes(run: Run, step: int, now: float) -> Votes:
    """What this rank asks for after `step`. Anyone may pass on a pause, and each node tells of its copies; the rest is
    rank 0's.
    """
    copied = run.snapshots.copied()
    return Votes(
        pause=run.local_rank == 0 and run.mailbox.pause_requested(),
        snapshot=run.leads and run.snapshots.ready and run.snapshot_policy.due(step),
        durable=run.leads and run.durable_policy.due(step, now),
        snapshot_seconds=run.snapshots.seconds,
        copied=int(copied is True),
        not_copied=int(copied is False),
    )


def note_peak(run: Run) -> None:
    """Collective, after steps of which all ranks know: what the fullest rank took."""
    if not due(run.state.step - run.job.record.restore.step):
        return
    fullest = torch.tensor(run.peak.peak_bytes(), dtype=torch.int64)
    if run.axes.world > 1:
        dist.all_reduce(fullest, op=dist.ReduceOp.MAX)
    run.reporter.peaked(int(fullest))


def after_collective(run: Run, agreed: Votes) -> None:
    complete = run.snapshots.everyone_passed(agreed)
    if complete is not None:
        run.metrics.write(run.state.step, buddiesHave=complete)


def account(run: Run, result: StepResult, learning_rate: float, seconds: float) -> None:
    now = time.time()
    run.snapshot_policy.stepped(seconds)
    if result.agreed.snapshot_seconds:
        run.snapshot_policy.cost(result.agreed.snapshot_seconds)
    run.reporter.stepped(
        run.state, at=now, seconds=seconds, tokens=result.tokens, data_wait=run.reader.waited
    )
    run.metrics.write(
        run.state.step,
        loss=result.loss,
        tokens=result.tokens,
        learningRate=learning_rate,
        gradientNorm=result.gradient_norm,
        **run.state.extras(result),
        seconds=seconds,
        dataWaitSeconds=round(run.reader.waited, 6),
        at=now,
    )
    post(run)  # what is told has been written down


def snapshot(run: Run) -> None:
    seconds = run.snapshots.take()
    run.reporter.snapshot_taken(seconds)
    run.metrics.write(run.state.step, snapshotSeconds=seconds)
    run.snapshot_policy.taken(run.state.step)


def begin_save(run: Run) -> None:
    """Collective: the step waits for the copy only. Rank 0 has seen the one before end; elsewhere it is about to."""
    note_saved(run, wait=True)
    run.durable_policy.begun(time.monotonic())
    stalled = run.durable.begin()
    run.metrics.write(run.state.step, saveStallSeconds=stalled)


def note_saved(run: Run, *, wait: bool = False) -> str:
    """As `take_saved`, but a failure is told and no more: storage that is full or away for a while must not stop
    training.
    """
    try:
        return take_saved(run, wait=wait)
    except SaveFailed as error:
        log.error("step %d: %s; training goes on", run.state.step, error)
        run.durable_policy.failed(time.monotonic())
        run.metrics.write(run.state.step, saveFailed=str(error))
        run.reporter.save_failed(str(error))
        post(run)
        say(run, f"saving failed ({error.problem}); training goes on")
        return ""


def take_saved(run: Run, *, wait: bool) -> str:
    """The name of the checkpoint that was begun, once it is committed; "" while it is being written, or when there is
    none. Raises SaveFailed.
    """
    saved = run.durable.ended(wait=wait)
    if saved is None:
        return ""
    run.durable_policy.saved()
    run.reporter.saved(saved.name, saved.step)
    run.metrics.write(saved.step, durable=saved.name, saveSeconds=saved.seconds)
    post(run)
    say(run, "")
    return saved.name


def save_now(run: Run) -> str:
    """Collective: save this step and wait for it. "" when that failed."""
    begin_save(run)
    say(run, "saving")
    return note_saved(run, wait=True)


def save_at_last(run: Run) -> str:
    """As `save_now`, with a little patience. Raises SaveFailed on all ranks when it is used up."""
    for seconds in FINAL_SAVE_WAITS:
        if name := save_now(run):
            return name
        time.sleep(seconds)
    begin_save(run)
    return take_saved(run, wait=True)


def hand_over(run: Run) -> bool:
    """Collective: whether this step is kept for those who go on from it; what is being written is written first."""
    name = note_saved(run, wait=True)
    if run.snapshots.on:
        return True
    return name == names.checkpoint_dir(run.state.step, run.job.record.epoch) or bool(save_now(run))


def paused(run: Run) -> Result:
    run.reader.close()
    if run.axes.world > 1:
        dist.barrier()
    run.snapshots.everyone_passed(Votes())
    log.info("paused after step %d", run.state.step)
    progress = run.reporter.progress(run.state) if run.leads else None
    return Result("Paused", run.state.step, progress=progress)


def done(run: Run) -> Result:
    """The last step is saved once, and rank 0 exports it. An epoch that restores the last step comes straight
    here.
    """
    run.reader.close()
    note_saved(run, wait=True)
    name = run.durable.existing()
    if name:
        run.reporter.saved(name, run.state.step)
        post(run)
    else:
        name = save_at_last(run)
    result = Result("Done", run.state.step, manifest=name)
    if not run.leads:
        return result
    say(run, "exporting")
    export(run.config.checkpoint.location, name, run.config.output)
    where = run.job.spec["output"]["uri"]  # as the user named it, which is right outside of this pod too
    return replace(result, final=True, export=where, progress=run.reporter.progress(run.state))


def post(run: Run) -> None:
    if run.leads:
        run.mailbox.post_progress(run.reporter.progress(run.state))


def say(run: Run, activity: str) -> None:
    if run.local_rank == 0:
        run.mailbox.post_activity(activity)
