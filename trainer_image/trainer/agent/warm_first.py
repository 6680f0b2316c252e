"""First import of the fork server: ties it to the agent, and every process that it forks to it, from the
first instant. Importing this module anywhere else would be a mistake: it acts on the process that imports it.
"""

from __future__ import annotations

import os

from trainer.agent import server_environment, tether

SERVER = os.getpid()
_forking = 0


def _before_fork() -> None:
    global _forking
    _forking = os.getpid()


def _in_child() -> None:
    if _forking == SERVER:  # children of ranks are their own business
        tether.tie(SERVER)


tether.tie(int(os.environ[server_environment.AGENT_PID]))
os.register_at_fork(before=_before_fork, after_in_child=_in_child)
