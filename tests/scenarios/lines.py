"""Which kind of line the scenarios run on: processes of this machine, unless a session chose a cluster (`--line`)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tests.scenarios.line import Line
from tests.scenarios.local_line import LocalLine


class Lines(Protocol):
    def open(self, nodes: int, state: Path | None) -> Line:
        """A line of that many working nodes. `state`: a folder for what it keeps."""

    def uri_of(self, path: Path) -> str:
        """How a manifest names this path of the machine that runs the tests."""


class LocalLines:
    def open(self, nodes: int, state: Path | None) -> Line:
        return LocalLine(nodes=nodes, state=state)

    def uri_of(self, path: Path) -> str:
        return f"file://{path}"


_chosen: Lines = LocalLines()


def choose(lines: Lines) -> None:
    global _chosen
    _chosen = lines


def open_line(nodes: int = 2, state: Path | None = None) -> Line:
    return _chosen.open(nodes, state)


def uri_of(path: Path) -> str:
    return _chosen.uri_of(path)
