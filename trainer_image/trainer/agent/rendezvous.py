"""PyTorch's rendezvous, with membership as the backend: acts on directives while no ranks run.

`next_rendezvous` returns when an epoch's record names this agent and all that its ranks need is here. It
never forms a world by itself: without a record nothing starts, however long membership is away.
"""

from __future__ import annotations

import functools
import logging
import shutil
from multiprocessing.connection import wait
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from trainer.agent import fetch, pieces
from trainer.agent.endings import LOOK_SECONDS, leaving
from trainer.agent.exits import shorten
from trainer.agent.node import Node
from trainer.agent.strays import reap_strays
from trainer.checkpoint.snapshot_format import snapshot_name
from trainer.job import Mailbox, RankJob
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import AgentPhase, Directive, DirectiveKind
from trainingrun.protocol.records import Epoch, RankExit, RestoreSource, SnapshotId

logger = logging.getLogger(__name__)


class Rendezvous(RendezvousHandler):
    def __init__(self, node: Node, store: TCPStore) -> None:
        self._node = node
        self._store = store
        self.job: RankJob | None = None  # of the newest epoch

    # what membership says

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises Ending when this agent is to leave."""
        while True:
            self._node.warm.check()
            reap_strays()
            directive = self._node.inbox.take()
            if directive is None:
                wait([self._node.inbox.fd, *self._node.warm.fds()], LOOK_SECONDS)
            elif (job := self._act_on(directive)) is not None:
                self.job = job
                return self._info(job)

    def _act_on(self, directive: Directive) -> RankJob | None:
        match directive.kind:
            case DirectiveKind.LEAVE:
                raise leaving(directive, self._node.news.state.epoch, self._node.news.state.mailbox)
            case DirectiveKind.PREPARE:
                self._node.survey.look()
                self._node.news.change(prepared=directive.nonce)
            case DirectiveKind.START if directive.record is not None:
                return self._job_of(directive.record)
            case _:
                pass  # Pause and Wait ask nothing of a node without ranks
        return None

    def _job_of(self, record: Epoch) -> RankJob | None:
        """The ranks' job, once everything for it is here; None when this is no epoch for us to start."""
        member = self._member(record)
        if member is None or record.epoch <= self._node.news.state.epoch:
            return None  # an epoch's ranks are started once; after they ended only a new epoch starts any
        settings = self._node.settings
        shutil.rmtree(settings.mailboxes, ignore_errors=True)
        mailbox = Mailbox(settings.mailboxes / f"epoch-{record.epoch:04d}")
        self._node.news.change(
            phase=AgentPhase.RUNNING, epoch=record.epoch, prepared="", exits=(), activity="", mailbox=mailbox
        )
        self._node.snapshots.prune(record.restore, buddies=record.rung.buddies)
        try:
            files = self._restore_files(record, member)
        except fetch.Interrupted:
            logger.info("epoch %d: overtaken while fetching", record.epoch)
            self._node.news.change(phase=AgentPhase.IDLE, activity="")
            return None
        except fetch.PiecesMissing as problem:
            self._not_restored(record, ExitCode.NOT_FETCHED, str(problem))
            return None
        except fetch.PiecesDamaged as problem:
            name = snapshot_name(record.restore.epoch, record.restore.step)
            self._not_restored(record, ExitCode.CHECKPOINT_DAMAGED, str(problem), name)
            return None
        return RankJob(
            spec=self._node.spec,
            record=record,
            member=member,
            slot=settings.slot,
            run_uid=settings.run_uid,
            mailbox=mailbox.folder,
            snapshot_dir=self._node.snapshots.folder,
            restore_files=files,
            cache_dir=settings.cache_dir,
            log_dir=settings.log_dir,
        )

    def _not_restored(self, record: Epoch, code: ExitCode, problem: str, damaged: str = "") -> None:
        """The epoch fails here before any rank is started."""
        logger.error("epoch %d: %s", record.epoch, problem)
        node = self._node
        names = tuple(sorted({*node.news.state.damaged, damaged} - {""}))
        failure = RankExit(node.settings.slot, 0, code, shorten(problem))
        node.news.change(phase=AgentPhase.FAILED, activity="", exits=(failure,), damaged=names)

    def _overtaken(self, record: Epoch) -> bool:
        """Whether membership wants something for which the epoch's ranks need not be started any more. Raises an
        Ending.
        """
        directive = self._node.inbox.peek()
        match directive:
            case None:
                return False
            case Directive(kind=DirectiveKind.LEAVE | DirectiveKind.PREPARE):
                return True
            case Directive(kind=DirectiveKind.START, record=Epoch() as newer) if newer.epoch > record.epoch:
                return True
            case Directive(kind=DirectiveKind.PAUSE):
                return False  # left to whoever watches the ranks
            case _:
                # The same record again, say, from a service that restarted.
                self._node.inbox.acted_on(directive)
                return False

    def _member(self, record: Epoch) -> int | None:
        sessions = [member.session for member in record.members]
        return sessions.index(self._node.session) if self._node.session in sessions else None

    def _restore_files(self, record: Epoch, member: int) -> tuple[Path, ...]:
        restore = record.restore
        if restore.source is not RestoreSource.MEMORY:
            return ()
        wanted = pieces.needed(record, member)
        missing = wanted - self._node.snapshots.files_of(restore.epoch, restore.step).keys()
        if missing:
            self._node.news.change(
                activity=f"fetching {len(missing)} pieces of step {restore.step} from peers"
            )
            holders = pieces.holders(record, member)
            snapshot = SnapshotId(restore.epoch, restore.step)
            overtaken = functools.partial(self._overtaken, record)
            copied = fetch.fetch(self._node.snapshots.fetched, snapshot, missing, holders, overtaken)
            logger.info("epoch %d: fetched %d bytes from peers", record.epoch, copied)
            self._node.news.change(activity="")
        files = self._node.snapshots.files_of(restore.epoch, restore.step)
        if wanted - files.keys():
            gone = sorted(wanted - files.keys())
            raise fetch.PiecesMissing(f"pieces {gone} of step {restore.step} were here and are gone")
        return tuple(files[piece] for piece in sorted(wanted))

    def _info(self, job: RankJob) -> RendezvousInfo:
        where = job.record.store
        if job.member == 0:
            # The store lives as long as the agent; what earlier epochs left in it must not pile up.
            for key in self._store.list_keys():
                if not key.startswith(f"{where.prefix}/"):
                    self._store.delete_key(key)
        # Agents exchange nothing through the store: the record says it all. Ranks open it by its address.
        store = PrefixStore(where.prefix, self._store)
        address = RendezvousStoreInfo(where.host, where.port)
        return RendezvousInfo(store, job.member, len(job.record.members), address)

    # the rest of PyTorch's interface

    def get_backend(self) -> str:
        return "trainingrun"

    def get_run_id(self) -> str:
        return self._node.settings.run_uid

    def num_nodes_waiting(self) -> int:
        """1 when there is a directive that the ranks' watcher must act on."""
        return int(self._node.inbox.peek() is not None)

    def is_closed(self) -> bool:
        return False  # only a directive or an answer of membership closes it, as an Ending

    def set_closed(self) -> None:
        """An agent cannot close a run."""

    def shutdown(self) -> bool:
        self._node.survey.close()
        return True
