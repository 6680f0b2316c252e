"""The part of the agent's life that needs torch: the store's server, and PyTorch's elastic agent around the ranks."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch.distributed import TCPStore

from trainer.agent.elastic import RunAgent
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.parts import Parts, Spec
from trainer.agent.rendezvous import Rendezvous
from trainer.agent.settings import Settings
from trainer.agent.snapshots import Snapshots
from trainer.agent.survey import Survey
from trainer.agent.warm import WarmServer
from trainingrun.protocol.messages import AgentPhase


def run_epochs(
    settings: Settings,
    parts: Parts,
    session: str,
    spec: Spec,
    store_socket: socket.socket,
    snapshots: Snapshots,
    survey: Survey,
    warm: WarmServer,
    news: News,
    inbox: Inbox,
) -> None:
    """Raises the Ending."""
    # The launcher would take over these signals at each start of ranks; the agent has handlers of its own.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP"
    port = store_socket.getsockname()[1]
    store = TCPStore(
        "localhost",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=store_socket.detach(),
    )
    survey.look()
    survey.start()
    rendezvous = Rendezvous(settings, session, spec, store, snapshots, survey, warm, news, inbox)
    agent = RunAgent(settings.processes, parts.rank_module, rendezvous, news, inbox)
    news.change(phase=AgentPhase.IDLE, activity="")
    agent.run()
