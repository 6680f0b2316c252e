"""The real membership service as on a cluster: `python -m tests.trainer.secure_membership FOLDER`.

Runs with the operator's environment: HTTPS, and the gate over an API server in memory. Writes into FOLDER the
authority `ca.crt` and one that has nothing to do with it, `other.crt`; tokens `token-<slot>-<incarnation>` of pods that
are there, and `token-unknown`, of none; then `records`, whose first line is the port.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.operator.gate_world import CONTROLLER, FakeServer, a_token
from tests.trainer.real_membership import RUN, MemoryRecords

from trainingrun.cluster.kubernetes import certificates
from trainingrun.cluster.kubernetes.gate import TokenGate
from trainingrun.membership.server import serve
from trainingrun.membership.settings import Settings
from trainingrun.protocol.names import TOKEN_AUDIENCE


async def main(folder: Path) -> None:
    now = datetime.now(UTC)
    authority, other = (certificates.new_authority(name, now) for name in ("membership", "other"))
    (folder / "ca.crt").write_text(authority.certificate_pem)
    (folder / "other.crt").write_text(other.certificate_pem)
    server = FakeServer()
    server.add_run(RUN)
    for slot in (0, 1):
        (folder / f"token-{slot}-0").write_text(server.add_worker(slot, run=RUN) + "\n")
    (folder / "token-unknown").write_text(a_token(time.time() + 3600, "unknown"))
    hosts = certificates.service_names("membership", "operator")
    tls = certificates.server_context(certificates.server_certificate(authority, hosts, now))
    records = MemoryRecords(folder / "records")
    await serve(
        records,
        "127.0.0.1",
        0,
        Settings(start_wait_seconds=0.5),
        lambda host, port: records.write(str(port)),
        tls=tls,
        gate=TokenGate(server, TOKEN_AUDIENCE, CONTROLLER),
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(main(Path(sys.argv[1])))
