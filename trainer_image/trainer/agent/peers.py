"""Serves this node's sealed snapshot files to peers that join: whole files, by name, without copying them.

    GET /snapshots/{epoch}/{step}          the list: [{"piece": [p, s, t], "name": …, "size": …}]
    GET /snapshots/{epoch}/{step}/{name}   one file of that list

Nothing else can be read: a name that is not in the list is a 404.
"""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trainer.agent.pieces import Piece
from trainer.agent.snapshots import Snapshots

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
            case ["snapshots", epoch, step, *name] if (
                epoch.isdecimal() and step.isdecimal() and len(name) <= 1
            ):
                files = self.snapshots.files_of(int(epoch), int(step))
                if name:
                    self._send_file(files, name[0])
                else:
                    self._send_list(files)
            case _:
                self.send_error(404)

    def _send_list(self, files: dict[Piece, Path]) -> None:
        listed = []
        for piece, path in files.items():
            try:
                listed.append({"piece": piece, "name": path.name, "size": path.stat().st_size})
            except FileNotFoundError:
                continue  # pruned a moment ago
        body = json.dumps(listed).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, files: dict[Piece, Path], name: str) -> None:
        path = next((path for path in files.values() if path.name == name), None)
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
