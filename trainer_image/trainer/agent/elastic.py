"""PyTorch's LocalElasticAgent, driven by membership: starts an epoch's ranks, watches them, kills them.

The base class keeps the life cycle that every PyTorch launcher has (rendezvous, worker group, events). What differs:
ranks are forks of the warm server, they are stopped with SIGKILL (a handler in Python does not run inside a
collective), what they leave is reported as evidence, and what comes next is membership's decision, so there is no
restart by itself and no barrier at exit.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from trainer.agent import entry, exits, facts
from trainer.agent.endings import LOOK_SECONDS, Ending
from trainer.agent.node import Node
from trainer.agent.ranks import Ranks
from trainer.agent.rendezvous import Rendezvous
from trainer.agent.step_log import StepLog
from trainer.job import Mailbox, RankJob, Result
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import AgentPhase, Directive, DirectiveKind, Termination
from trainingrun.protocol.records import EpochSummary, RankExit

logger = logging.getLogger(__name__)

_KILL_SECONDS = 10
_NEVER_AGAIN = {ExitCode.BAD_CONFIGURATION: "BadConfiguration", ExitCode.NO_CHECKPOINT: "NoUsableCheckpoint"}
_DELIVER_SECONDS = 1.0


class RunAgent(LocalElasticAgent):
    """`run()` returns only by raising an Ending."""

    def __init__(self, node: Node, rendezvous: Rendezvous) -> None:
        spec = WorkerSpec(
            role="trainer",
            local_world_size=node.settings.processes,
            rdzv_handler=rendezvous,
            entrypoint=entry.run_rank,
            monitor_interval=LOOK_SECONDS,
        )
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull), exit_barrier_timeout=0)
        self._node = node
        self._rendezvous_handler = rendezvous
        self._ranks: Ranks | None = None
        self._oom_kills = 0
        self._steps = StepLog(node.settings.log_stdout)

    def _invoke_run(self, role: str = "") -> RunResult:
        group = self._worker_group
        while True:
            try:
                self._initialize_workers(group)
            except (OSError, EOFError) as error:
                self._not_started(error)
            else:
                self._watch(group)

    def _watch(self, group: WorkerGroup) -> None:
        """Until this epoch's ranks have ended or were stopped."""
        while True:
            group.state = self._monitor_workers(group).state
            self._say_steps(last=group.state is not WorkerState.HEALTHY)
            if group.state is WorkerState.FAILED:
                self._failed(group)
                return
            if group.state is WorkerState.SUCCEEDED:
                self._succeeded(group)
                return
            directive = self._node.inbox.peek()
            if directive is not None and self._must_stop(directive):
                self._stop_workers(group)
                self._node.news.change(phase=AgentPhase.IDLE, activity="")
                return

    def _must_stop(self, directive: Directive) -> bool:
        """Act on a directive while ranks run. One that they must be stopped for is left to the rendezvous."""
        job = self._job()
        match directive.kind:
            case DirectiveKind.LEAVE | DirectiveKind.PREPARE:
                return True
            case DirectiveKind.START if (
                directive.record is not None and directive.record.epoch > job.record.epoch
            ):
                return True
            case DirectiveKind.PAUSE if directive.epoch == job.record.epoch:
                Mailbox(job.mailbox).request_pause()
            case _:
                pass
        self._node.inbox.acted_on(directive)
        return False

    def _say_steps(self, last: bool) -> None:
        mailbox = self._node.news.state.mailbox
        if mailbox is not None:
            self._steps.look(mailbox.progress(), time.monotonic(), last)

    # how epochs end

    def _not_started(self, error: Exception) -> None:
        """The fork server did not give us our ranks: most likely it has just died."""
        # Ranks that it did start are known to nobody. They die with it; the rendezvous starts another.
        self._node.warm.kill()
        self._ranks = None
        self._node.echo.finish()
        message = f"ranks could not be started: {type(error).__name__}: {error}"
        logger.error("epoch %d: %s", self._node.news.state.epoch, message)
        failure = RankExit(self._node.settings.slot, 0, ExitCode.APPLICATION, message)
        self._node.news.change(phase=AgentPhase.FAILED, exits=(failure,), activity="")

    def _failed(self, group: WorkerGroup) -> None:
        self._running().kill()
        job = self._job()
        mailbox = Mailbox(job.mailbox)
        found = self._evidence(job, mailbox)
        damaged = tuple(sorted({*self._node.news.state.damaged, mailbox.damaged()} - {""}))
        # Reported before the killed ones have vanished: nobody has to wait until their memory is given back.
        version = self._node.news.change(phase=AgentPhase.FAILED, exits=found, damaged=damaged, activity="")
        for rank_exit in found:
            first_line = rank_exit.message.partition("\n")[0]
            logger.error(
                "epoch %d: rank %d: %s", job.record.epoch, job.rank(rank_exit.local_rank), first_line
            )
        self._stop_workers(group)
        for rank_exit in found:
            if rank_exit.exit_code in _NEVER_AGAIN:
                self._node.news.wait_delivered(version, _DELIVER_SECONDS)
                raise Ending(_never_again(rank_exit, job.record.epoch))

    def _succeeded(self, group: WorkerGroup) -> None:
        job = self._job()
        result = Mailbox(job.mailbox).result()
        if result is None:
            self._failed(group)
            return
        self._stop_workers(group)
        logger.info("epoch %d: %s at step %d", job.record.epoch, result.outcome.lower(), result.step)
        if result.outcome == "Done" and result.final:
            raise Ending(_done(result, job.record.epoch))
        phase = AgentPhase.DONE if result.outcome == "Done" else AgentPhase.PAUSED
        self._node.news.change(phase=phase, activity="")

    def _evidence(self, job: RankJob, mailbox: Mailbox) -> tuple[RankExit, ...]:
        logs = {local_rank: entry.log_file(job, local_rank) for local_rank in self._local_ranks(job)}
        return exits.evidence(
            job.slot,
            self._running().ended,
            mailbox.errors(),
            logs,
            out_of_memory=facts.oom_kills() > self._oom_kills,
            result_posted=mailbox.result() is not None,
        )

    # what the base class leaves to its subclasses

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Every node has the same number of ranks, so the record says it all and no store is asked."""
        job = self._job()
        spec.local_world_size = job.record.rung.processes_per_node
        world = job.record.rung.world
        return [
            Worker(local, job.rank(local), job.rank(local), world, world)
            for local in range(spec.local_world_size)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        job = self._job()
        job.log_dir.mkdir(parents=True, exist_ok=True)
        self._oom_kills = facts.oom_kills()
        self._ranks = Ranks(self._node.rank_module, job)
        self._node.echo.follow(self._log_files(job))
        pids = self._ranks.start()
        self._node.buddies.begin(job)
        logger.info(
            "epoch %d: ranks %s run (pids %s), from %s step %d",
            job.record.epoch,
            [job.rank(local_rank) for local_rank in pids],
            list(pids.values()),
            job.record.restore.source.value,
            job.record.restore.step,
        )
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Wait until a rank ends or a directive comes, or for a moment."""
        ranks = self._running()
        ranks.wait([self._node.inbox.fd], LOOK_SECONDS)
        if ranks.any_failed:
            return RunResult(WorkerState.FAILED)
        return RunResult(WorkerState.SUCCEEDED if ranks.all_ended else WorkerState.HEALTHY)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = _KILL_SECONDS) -> None:
        """Whatever signal the base class asks for: SIGKILL, at once."""
        self._node.buddies.end()
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(_KILL_SECONDS)
        self._node.echo.finish()

    @staticmethod
    def _local_ranks(job: RankJob) -> range:
        return range(job.record.rung.processes_per_node)

    def _log_files(self, job: RankJob) -> dict[int, Path]:
        """By global rank."""
        return {
            job.rank(local_rank): entry.log_file(job, local_rank) for local_rank in self._local_ranks(job)
        }

    def _running(self) -> Ranks:
        if self._ranks is None:
            raise RuntimeError("no ranks were started")
        return self._ranks

    def _job(self) -> RankJob:
        job = self._rendezvous_handler.job
        if job is None:
            raise RuntimeError("there are no ranks without a job")
        return job


def _done(result: Result, epoch: int) -> Termination:
    progress = result.progress
    return Termination(
        ExitCode.DONE,
        "Done",
        epoch=epoch,
        step=result.step,
        tokens=progress.tokens if progress else 0,
        loss=progress.loss if progress else 0.0,
        manifest=result.manifest,
        export=result.export,
        summary=progress.summary if progress else EpochSummary(epoch=epoch),
    )


def _never_again(rank_exit: RankExit, epoch: int) -> Termination:
    code = ExitCode(rank_exit.exit_code)
    return Termination(code, _NEVER_AGAIN[code], rank_exit.message, epoch)
