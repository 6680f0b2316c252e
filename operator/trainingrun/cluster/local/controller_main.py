"""The controller of a local cluster: `python -m trainingrun.cluster.local.controller_main --state DIR`.

A thin program: the control loop over a state directory. Started by LocalCluster, and by a supervisor again.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from trainingrun.cluster.local import processes
from trainingrun.cluster.local.adapter import LocalPort
from trainingrun.control.loop import ControllerSettings, run_controller


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainingrun.cluster.local.controller_main")
    parser.add_argument("--state", type=Path, required=True, help="state directory")
    parser.add_argument("--parent", type=int, default=0, help="die when this process, our parent, does")
    options = parser.parse_args(arguments)
    if options.parent:
        processes.die_with_parent(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run_controller(LocalPort(options.state.resolve()), ControllerSettings(), stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
