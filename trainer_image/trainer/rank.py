"""The entry of a training process: joins the world that the epoch's record describes, trains, and says how
it ended.

`main(job, local_rank)` is called in a fresh fork of the warm server, which has imported this module:
everything heavy is imported above, and importing starts no thread. A rank that fails leaves its error in
the mailbox and ends at once; waiting for others in a collective would only delay the recovery.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

import torch
import torch.distributed as dist
from transformers import PretrainedConfig

from trainer.allocator import keep_memory
from trainer.architecture import model_config
from trainer.checkpoint.about import AboutModel
from trainer.checkpoint.cut import check_cut
from trainer.checkpoint.shards import dtype_name
from trainer.config import TrainerConfig, check_rung, read_config, vocabulary_size
from trainer.config.engine import DEEPSPEED
from trainer.data.batches import BatchReader
from trainer.data.prefetch import Prefetch
from trainer.data.prepare import PreparedData, prepared, samples_of
from trainer.eager import ATTENTIONS
from trainer.engine import Engine, native
from trainer.errors import CheckpointDamaged, ConfigError, TrainerError
from trainer.job import Mailbox, RankJob
from trainer.keeping import DurableKeeper, SnapshotKeeper
from trainer.loop import Run, train
from trainer.mesh import Axes, build_axes
from trainer.metrics import MetricsLog
from trainer.peak import PeakMeter
from trainer.policy import DurablePolicy, SnapshotPolicy
from trainer.precision import PRECISIONS
from trainer.probe import measure
from trainer.report import Reporter
from trainer.schedule import schedule_of
from trainer.weights_folder import SOURCE_FIELD, WeightsFolder
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import Epoch, MachineSpeed, RankExit, RestoreSource, Rung

log = logging.getLogger(__name__)

# A lost peer is noticed by its closed connection, or by membership, which has the ranks killed. This bounds
# only a hang.
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)
JOIN_TIMEOUT = datetime.timedelta(seconds=60)
FAREWELL_SECONDS = 30
MESSAGE_BYTES = 2048


def main(job: RankJob, local_rank: int) -> None:
    """Train this rank's part of an epoch. Ends the process when it fails; returns when the ranks are done
    or paused.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s rank {job.rank(local_rank)}: %(message)s"
    )
    with _ExitReport(job, local_rank):
        _run(job, local_rank)


def _run(job: RankJob, local_rank: int) -> None:
    config = read_config(job.spec)
    check_rung(config, job.record.rung)
    check_cut(job.record, config.checkpoint.location)
    kept = keep_memory()
    torch.set_num_threads(config.threads_per_process)
    store = join_world(job, local_rank)
    data = prepared(job.spec, job.cache_dir)
    _check_same_on_all_nodes(job, local_rank, store, config, data)
    speed = _speed(job.record, config)
    peak = PeakMeter(kept=kept)
    run = assemble(job, local_rank, config, data, peak)
    if speed is not None:
        run.reporter.measured(speed)
    result = train(run)
    farewell(job, store)
    if local_rank == 0:
        Mailbox(job.mailbox).post_result(result)


def _speed(record: Epoch, config: TrainerConfig) -> MachineSpeed | None:
    """Collective. A recovery does not wait for measurements."""
    if record.restore.source is not RestoreSource.INITIAL:
        return None
    return measure(record.rung.world, record.rung.nodes, PRECISIONS[config.training.precision].compute)


def join_world(job: RankJob, local_rank: int) -> dist.Store | None:
    """The default process group, over the store of the epoch's record; None in a world of one, which only the
    engine DeepSpeed gives a group."""
    world = job.record.rung.world
    if world == 1:
        if job.record.rung.engine == DEEPSPEED:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return None
    place = job.record.store
    client = dist.TCPStore(
        place.host, place.port, is_master=False, wait_for_workers=False, timeout=JOIN_TIMEOUT
    )
    store = dist.PrefixStore(place.prefix, client)
    dist.init_process_group(
        "gloo", store=store, rank=job.rank(local_rank), world_size=world, timeout=COLLECTIVE_TIMEOUT
    )
    return store


def assemble(
    job: RankJob, local_rank: int, config: TrainerConfig, data: PreparedData, peak: PeakMeter
) -> Run:
    """Collective: everything a rank trains with, its weights not yet filled in."""
    record, rung = job.record, job.record.rung
    axes = build_axes(rung, job.rank(local_rank))
    model = model_config(
        config.model.transformers_config, vocabulary_size(config.model, data.vocabulary_size)
    )
    model._attn_implementation = ATTENTIONS[config.training.overrides.attention]
    engine = _build(rung)(config, model, axes, rung)
    state = engine.state
    state.data = data.fingerprint
    reporter = Reporter(record, config.training.total_steps)
    about = AboutModel(
        config=config.model.transformers_config | {"vocab_size": model.vocab_size},
        dtype=dtype_name(PRECISIONS[config.training.precision].compute),
        end_token=data.train.end_token,
        tokenizer_dir=data.tokenizer_dir,
        data_fingerprint=data.fingerprint,
        flat=engine.flat,
    )
    durable = DurableKeeper(job, config, axes, state, parent=reporter.summary.durable, about=about)
    durable.fence()
    return Run(
        job=job,
        local_rank=local_rank,
        config=config,
        axes=axes,
        data=data,
        reader=_reader(job, config, axes, data),
        runner=engine.runner,
        fill=engine.fill,
        state=state,
        schedule=schedule_of(config.training),
        model=model,
        snapshots=SnapshotKeeper(
            job, local_rank, axes, state, on=config.checkpoint.memory_interval_steps != 0
        ),
        durable=durable,
        snapshot_policy=SnapshotPolicy(config.checkpoint.memory_interval_steps),
        durable_policy=DurablePolicy(
            config.checkpoint.durable_interval_seconds,
            config.checkpoint.durable_interval_steps,
            now=time.monotonic() - (durable.seconds_since_saved(time.time()) if axes.rank == 0 else 0.0),
        ),
        reporter=reporter,
        metrics=MetricsLog(job.log_dir, record.epoch, on=axes.rank == 0),
        mailbox=Mailbox(job.mailbox),
        peak=peak,
    )


def _build(rung: Rung) -> Callable[[TrainerConfig, PretrainedConfig, Axes, Rung], Engine]:
    if rung.engine == DEEPSPEED:
        from trainer.deepspeed_engine.engine import build  # not above: it loads DeepSpeed

        return build
    return native


def _reader(job: RankJob, config: TrainerConfig, axes: Axes, data: PreparedData) -> Prefetch:
    # One rank of each data rank keeps the log of what was read: the others read the same.
    logs = axes.leads_data_rank
    reader = BatchReader(
        samples_of(data, config.data, config.training.sequence_length, job.cache_dir),
        global_batch=config.training.global_batch,
        micro_batch=job.record.rung.micro_batch,
        accumulation=job.record.rung.accumulation,
        data_rank=axes.data_rank,
        data_degree=axes.data_degree,
        log_path=job.log_dir / f"reads-e{job.record.epoch:04d}-d{axes.data_rank}.jsonl" if logs else None,
        epoch=job.record.epoch,
    )
    return Prefetch(reader, last_step=config.training.total_steps)


def _check_same_on_all_nodes(
    job: RankJob, local_rank: int, store: dist.Store | None, config: TrainerConfig, data: PreparedData
) -> None:
    """Every node prepared the data by itself, and read the weights; positions in the order mean nothing unless the
    data is the same, nor do parts of different weights make a model.
    """
    if store is None:
        return
    found = {"spec.data.sources": data.fingerprint}
    if config.source is not None and job.record.restore.source is RestoreSource.INITIAL:
        found[SOURCE_FIELD] = WeightsFolder(config.source.folder, config.source.uri).fingerprint()
    for field, fingerprint in found.items():
        if job.rank(local_rank) == 0:
            store.set(field, fingerprint)
        first = store.get(field).decode()
        if first != fingerprint:
            node = job.record.members[job.member].node
            raise ConfigError(
                field,
                fingerprint,
                f"node {node} has something else there than the first node ({first})",
                "make it the same on all nodes",
            )


def farewell(job: RankJob, store: dist.Store | None) -> None:
    """Leave together: a connection closed early would fail a rank that is still in the last collective."""
    if store is None:
        return
    if store.add("left", 1) == job.record.rung.world:
        store.set("all left", "")
    try:
        store.wait(["all left"], datetime.timedelta(seconds=FAREWELL_SECONDS))
    except dist.DistStoreError:
        log.warning("not every rank said goodbye within %d s", FAREWELL_SECONDS)


class _ExitReport:
    """Ends the process on any error, its code and message left for the agent."""

    def __init__(self, job: RankJob, local_rank: int) -> None:
        self._job = job
        self._local_rank = local_rank

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        text = "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
        code = error.exit_code if isinstance(error, TrainerError) else ExitCode.APPLICATION
        mailbox = Mailbox(self._job.mailbox)
        if isinstance(error, CheckpointDamaged):
            mailbox.post_damaged(error.checkpoint)
        mailbox.post_error(RankExit(self._job.slot, self._local_rank, int(code), message_of(error, text)))
        os._exit(code)


def message_of(error: BaseException, text: str) -> str:
    """At most MESSAGE_BYTES: what happened in one line, then as much of the traceback's end as fits."""
    headline = f"{type(error).__name__}: {error}" if not isinstance(error, TrainerError) else str(error)
    head = headline.encode()[: MESSAGE_BYTES // 2]
    if isinstance(error, TrainerError) and error.exit_code != ExitCode.APPLICATION:
        return head.decode(errors="ignore")  # says it all
    tail = text.encode()[-(MESSAGE_BYTES - len(head) - 1) :]
    return head.decode(errors="ignore") + "\n" + tail.decode(errors="ignore")
