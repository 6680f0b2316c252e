"""The membership service of a local cluster: `python -m trainingrun.cluster.local.membership_main …`.

A thin program: the service over the records of a state directory. Started by LocalCluster, and by a
supervisor again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trainingrun.cluster.local import processes
from trainingrun.cluster.local.adapter import LocalPort
from trainingrun.membership.server import serve
from trainingrun.membership.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainingrun.cluster.local.membership_main")
    parser.add_argument("--state", type=Path, required=True, help="state directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="JSON of membership.settings.Settings"
    )
    parser.add_argument("--parent", type=int, default=0, help="die when this process, our parent, does")
    options = parser.parse_args(arguments)
    if options.parent:
        processes.die_with_parent(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(_serve(options.state.resolve(), options.host, options.port, Settings(**options.settings)))
    return 0


async def _serve(state: Path, host: str, port: int, settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(lambda: LocalPort(state), host, port, settings, stop=stop)


if __name__ == "__main__":
    sys.exit(main())
