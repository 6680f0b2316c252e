"""Serves this node's sealed snapshot files to peers that join: whole files, by piece, without copying them.

    GET /snapshots/{epoch}/{step}           the list: [{"piece": [p, s, t], "size": …}]
    GET /snapshots/{epoch}/{step}/{p-s-t}   one piece of that list

Nothing else can be read: a piece that is not in the list is a 404. Trouble on this side is a 503 with its reason.
"""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainer.agent.pieces import Piece
from trainer.agent.snapshots import Snapshots
from trainer.checkpoint import snapshot_format as form

logger = logging.getLogger(__name__)


class PeerServer:
    def __init__(self, snapshots: Snapshots) -> None:
        class Handler(_Handler):
            pass

        Handler.snapshots = snapshots
        self._server = _Server(("", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="peers", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        logger.warning("serving %s a snapshot failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    snapshots: Snapshots
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds in which a peer must take or send something

    def do_GET(self) -> None:
        match self.path.strip("/").split("/"):
            case ["snapshots", epoch, step, *piece] if (
                epoch.isdecimal() and step.isdecimal() and len(piece) <= 1
            ):
                try:
                    files = self.snapshots.files_of(int(epoch), int(step))
                    listed = [] if piece else _listed(files)
                except OSError as error:
                    logger.warning("looking for step %s of epoch %s failed: %s", step, epoch, error)
                    self.send_error(503, f"{type(error).__name__}: {error.strerror}")
                    return
                if piece:
                    self._send_file(files, piece[0])
                else:
                    self._send_list(listed)
            case _:
                self.send_error(404)

    def _send_list(self, listed: list[dict[str, Any]]) -> None:
        body = json.dumps(listed).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, files: dict[Piece, Path], name: str) -> None:
        path = next((path for piece, path in files.items() if form.piece_name(piece) == name), None)
        try:
            file = path.open("rb") if path else None
        except FileNotFoundError:
            file = None
        if path is None or file is None or path.is_symlink():
            self.send_error(404)
            return
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.flush()
            self.connection.sendfile(file)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug(format, *args)


def _listed(files: dict[Piece, Path]) -> list[dict[str, Any]]:
    found = []
    for piece, path in files.items():
        try:
            found.append({"piece": piece, "size": path.stat().st_size})
        except FileNotFoundError:
            continue  # pruned a moment ago
    return found
