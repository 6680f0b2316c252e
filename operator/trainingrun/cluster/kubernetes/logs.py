"""How the operator's programs log: to stderr, as plain lines or as JSON objects. Called once, at the start."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_QUIET = ("kopf", "aiohttp", "asyncio", "urllib3")  # only what went wrong there


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(style: str, level: str) -> None:
    """`style`: plain or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else logging.Formatter(PLAIN))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns that it handles no signals in a thread; we do.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
