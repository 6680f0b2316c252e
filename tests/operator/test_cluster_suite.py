"""What the cluster suite says about its parts, without a cluster."""

from __future__ import annotations

import pytest
from tests.cluster import suite
from tests.second_try import ROOT


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert suite.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {title: said for said, _, title in (line.partition(": ") for line in lines)}


def test_every_part_is_named_and_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(suite.ENV_FOREIGN, raising=False)
    told = listed(capsys)
    assert list(told) == [part.title for part in suite.PARTS]
    assert set(told.values()) == {"to run"}


def test_on_a_foreign_cluster_what_needs_its_machines_is_named_as_not_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(suite.ENV_FOREIGN, "kubeconfig")
    told = listed(capsys)
    assert {title for title, said in told.items() if said == "to run"} == {
        part.title for part in suite.PARTS if part.anywhere
    }


def test_every_file_of_a_part_is_there_and_every_cluster_test_is_in_a_part() -> None:
    named = {name for part in suite.PARTS for name in part.files}
    there = {f"tests/cluster/{path.name}" for path in (ROOT / "tests/cluster").glob("test_*.py")}
    assert there <= named
    assert all((ROOT / name).is_file() for name in named)
