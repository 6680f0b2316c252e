"""The part of the agent's life that needs torch: the store's server, and PyTorch's elastic agent around the
ranks.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore

from trainer.agent.elastic import RunAgent
from trainer.agent.endings import Broken
from trainer.agent.node import Node
from trainer.agent.rendezvous import Rendezvous
from trainingrun.protocol.messages import AgentPhase


def run_epochs(node: Node, store_socket: socket.socket) -> None:
    """Raises the Ending."""
    store = TCPStore(
        "localhost",
        store_socket.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=store_socket.detach(),
    )
    if problem := node.survey.look():  # unknown is not the same as empty: nobody may begin anew from it
        raise Broken(f"the checkpoint location cannot be listed: {problem}")
    node.survey.start()
    agent = RunAgent(node, Rendezvous(node, store))
    node.news.change(phase=AgentPhase.IDLE, activity="")
    agent.run()
