"""`--line cluster`: the same scenarios on the test cluster, with our chart installed; by default on processes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.scenarios import lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--line", choices=("local", "cluster"), default="local", help="where the scenarios run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is about the local command has no meaning on a cluster."""
    if config.getoption("--line") == "local":
        return
    local = [item for item in items if item.get_closest_marker("local_only")]
    config.hook.pytest_deselected(items=local)
    items[:] = [item for item in items if item not in local]


@pytest.fixture(scope="session", autouse=True)
def chosen_line(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    """The folder that the tests share with the pods; None on this machine."""
    if request.config.getoption("--line") == "local":
        yield None
        return
    from tests.cluster.session import cluster_lines  # needs root and the test cluster

    with cluster_lines() as chosen:
        before = os.umask(0)  # what a test writes must be writable for the user of the pods
        lines.choose(chosen)
        yield chosen.cluster.shared_dir
        os.umask(before)


class Folders:
    """Stands in for pytest's own factory: on a cluster a run's files must lie where its pods see them."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def mktemp(self, name: str) -> Path:
        numbered = (self._base / f"{name}-{number}" for number in itertools.count())
        folder = next(path for path in numbered if not path.exists())
        folder.mkdir()
        return folder


@pytest.fixture(scope="session")
def tmp_path_factory(
    chosen_line: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Folders | pytest.TempPathFactory:
    return tmp_path_factory if chosen_line is None else Folders(chosen_line)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: Folders | pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(re.sub(r"\W+", "-", request.node.name)[:40])
