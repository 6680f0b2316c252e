"""What the tools may lean on, and that the test cluster takes its programs from them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.cluster.harness import Cluster
from tools import setup_tools

ROOT = Path(__file__).resolve().parents[2]
TOOLS = sorted((ROOT / "tools").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """First words of the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    chosen = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in plain | chosen}


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.stem)
def test_a_tool_needs_no_test(path: Path) -> None:
    assert "tests" not in imported(path)


def test_the_cluster_and_the_chart_use_the_same_helm_and_kubectl(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    assert cluster.helm_path == setup_tools.tool("helm")
    assert cluster.kubectl_path == setup_tools.tool("kubectl")
