"""The list of what the cluster suite runs."""

from __future__ import annotations

from tests.cluster.suite import HERE, PARTS, ROOT


def test_no_test_of_the_cluster_is_left_out_of_the_suite() -> None:
    there = {f"{HERE}/{path.name}" for path in (ROOT / HERE).glob("test_*.py")}
    listed = [file for part in PARTS for file in part.files]
    assert len(listed) == len(set(listed))
    assert there == {file for file in listed if file.startswith(HERE)}
    assert all((ROOT / file).exists() for file in listed)
