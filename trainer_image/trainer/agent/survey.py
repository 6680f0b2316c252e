"""Keeps an eye on the checkpoint location: which manifests there are, and whether anything was ever written.

Listing may be slow or fail (it is a network file system or an object store), so it has a thread of its own
and the last good answer stands. Before a node says that it is prepared, the main thread asks for a fresh one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trainer.agent.news import News
from trainer.agent.parts import Found
from trainer.errors import TrainerError

logger = logging.getLogger(__name__)

EVERY_SECONDS = 5.0


class Survey:
    def __init__(self, look: Callable[[], Found], news: News) -> None:
        self._look = look
        self._news = news
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._keep_looking, name="survey", daemon=True)
        self._closing = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def look(self) -> str:
        """Why the location cannot be listed, or an empty string."""
        with self._looking:
            try:
                found = self._look()
            except (OSError, TrainerError) as error:
                logger.warning("listing the checkpoint location failed: %s", error)
                return str(error)
            self._news.change(
                quietly=True,
                durable=found.checkpoints,
                unreadable=found.damaged,
                location_fresh=found.fresh,
            )
            return ""

    def _keep_looking(self) -> None:
        while not self._closing.wait(EVERY_SECONDS):
            self.look()
