"""Kubeconfig files: a server, the authority it is verified with, and one user. JSON, which is YAML too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tools import cache


def write(path: Path, server: str, ca: Path, user: Mapping[str, str]) -> None:
    """`user` has the fields of a kubeconfig's user: a client certificate and key, or a token."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(ca)}}],
        "users": [{"name": "test", "user": dict(user)}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    with cache.publishing(path) as draft:
        draft.write_text(json.dumps(content, indent=1))
        draft.chmod(0o600)
