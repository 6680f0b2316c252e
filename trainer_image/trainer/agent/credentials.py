"""What the agent trusts and what it shows to membership on a cluster: a certificate and a bearer token, both files.

The kubelet renews both in place, so they are read again whenever they are used: the authority's certificate for each
connection, the token for each request. An unreadable file is an OSError, as a broken
line is: it may be there a moment later.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Credentials:
    authority: Path  # PEM; no other authority is trusted
    token: Path

    def context(self) -> ssl.SSLContext:
        """For one connection; the server's name is verified too. Raises OSError."""
        return ssl.create_default_context(cafile=str(self.authority))

    def header(self) -> str:
        """Value of `Authorization`. Raises OSError."""
        return f"Bearer {self.token.read_text().strip()}"

    def expired(self) -> bool:
        """Whether the token has run out without being renewed: then a refusal says nothing about this pod."""
        try:
            payload = self.token.read_text().split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            return float(claims["exp"]) <= time.time()
        except (OSError, LookupError, ValueError, TypeError):
            return False
