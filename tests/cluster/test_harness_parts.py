"""Parts of the harness that need neither root nor a cluster."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from tests.cluster.harness import HarnessError, cleanup
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.pods import PodProcess, select
from tests.cluster.harness.processes import Daemons
from tools import cache
from tools.base_image import apt_source

PARAGRAPHS = """Types: deb
# URIs: http://old.example/debian
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list.d/debian.sources", PARAGRAPHS, "http://mirror.example/debian"),
        ("sources.list", "# deb http://a bookworm main\ndeb http://b bookworm main\n", "http://b"),
        ("sources.list", "deb [arch=amd64 signed-by=/k] http://c bookworm main\n", "http://c"),
    ],
)
def test_the_base_image_comes_from_the_machines_own_apt_source(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/other.list").write_text("deb http://other other main\n")
    (tmp_path / name).write_text(text)
    assert apt_source(tmp_path) == expected


def test_a_machine_without_that_source_is_told_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a trixie main\n")
    with pytest.raises(HarnessError) as refused:
        apt_source(tmp_path)
    assert "bookworm" in refused.value.hint


def test_an_interrupted_build_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with pytest.raises(KeyboardInterrupt), cache.publishing(target) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with cache.publishing(target) as draft:
        draft.write_text("whole")
    assert target.read_text() == "whole"


def process(inner_pid: int, *command: str, **environment: str) -> PodProcess:
    return PodProcess(1000 + inner_pid, inner_pid, "main", command, environment)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [("all", [1, 7, 8]), ("pid=7", [7]), ("env=RANK=1", [8]), (r"trainer\.rank", [7, 8])],
)
def test_processes_of_a_pod_are_chosen_by_selector(selector: str, expected: list[int]) -> None:
    there = [
        process(1, "python", "-m", "trainer.agent"),
        process(7, "python", "-m", "trainer.rank", RANK="0"),
        process(8, "python", "-m", "trainer.rank", RANK="1"),
    ]
    assert [each.inner_pid for each in select(there, selector)] == expected


def test_a_daemon_is_recorded_and_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path / "pids", tmp_path / "logs")
    daemon = daemons.start("sleeper", ["sleep", "60"])
    assert daemon.alive
    assert [each.name for each in daemons.all()] == ["sleeper"]
    daemons.stop(["sleeper"])
    assert not daemon.alive
    assert daemons.all() == []

    with subprocess.Popen(["sleep", "60"]) as stranger:
        (tmp_path / "pids/old").write_text(f'{{"pid": {stranger.pid}, "started": 1}}')
        daemons.stop(["old"])
        time.sleep(0.1)
        assert stranger.poll() is None
        stranger.kill()


def test_a_folder_of_somebody_elses_is_never_taken_as_state_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(HarnessError, match="is not a test cluster's"):
        cleanup.claim(Layout(tmp_path))
    empty = tmp_path / "empty"
    cleanup.claim(Layout(empty))
    cleanup.check_folder(Layout(empty))
    assert (tmp_path / "thesis.tex").exists()
