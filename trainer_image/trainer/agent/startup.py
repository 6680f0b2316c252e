"""From a bare process to a node that can start ranks: imports and data, side by side. Phase Preparing until
then.

Directives wait meanwhile, except Leave and the other reasons to end.
"""

from __future__ import annotations

import gc
import importlib
import threading
from multiprocessing.connection import wait

from trainer.agent.data_process import DataProcess
from trainer.agent.endings import LOOK_SECONDS, leaving
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.warm import WarmServer
from trainingrun.protocol.messages import DirectiveKind


class Loader:
    """Imports torch into the agent beside everything else: membership shall know of this node before that is
    done.
    """

    def __init__(self, module: str, inbox: Inbox) -> None:
        self._module = module
        self._inbox = inbox
        self._thread = threading.Thread(target=self._load, name="loader", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        return not self._thread.is_alive()

    def _load(self) -> None:
        gc.disable()  # almost nothing is garbage yet, and looking for it is a sixth of the time
        try:
            importlib.import_module(self._module)
        finally:
            gc.enable()
            self._inbox.wake()


def get_ready(warm: WarmServer, data: DataProcess, loader: Loader, news: News, inbox: Inbox) -> None:
    """Returns when ranks could start. Raises an Ending."""
    while True:
        warm_ready, data_ready = warm.check(), data.check()
        directive = inbox.peek()
        if directive is not None and directive.kind is DirectiveKind.LEAVE:
            raise leaving(directive, news.state.epoch, news.state.mailbox)
        if warm_ready and data_ready and loader.ready:
            return
        news.change(activity=data.activity if not data_ready else "importing the training code")
        news_fd = [inbox.fd] if directive is None else []  # one that must wait is no reason to look again
        data_fd = [data.fd] if data.fd is not None else []
        wait([*news_fd, *data_fd, *warm.fds()], LOOK_SECONDS)
