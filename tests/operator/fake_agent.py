"""A stand-in for the agent in tests of the local cluster: it does what the spec file says, without torch.

Spec: {"starts": [{"exit": 137, "after": 0.0, "say": {...Termination}, "children": 1, "ignoreTerm": true},
...]}; the n-th start of the container takes the n-th entry (the last one again and again). The count of
starts is kept in the snapshot folder, which outlives the container. `exit: null` runs until it is told to
stop.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    snapshots = Path(os.environ["TRAININGRUN_SNAPSHOT_DIR"])
    counter = snapshots / "starts"
    start = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(start + 1))
    starts = json.loads(Path(os.environ["TRAININGRUN_SPEC_FILE"]).read_text())["starts"]
    act = starts[min(start, len(starts) - 1)]
    signal.signal(signal.SIGTERM, signal.SIG_IGN if act.get("ignoreTerm") else lambda *_: os._exit(75))
    for number in range(act.get("children", 0)):
        with (Path(os.environ["TRAININGRUN_LOG_DIR"]) / f"epoch-0001.rank-{number:04d}.log").open(
            "ab"
        ) as log:
            command = [sys.executable, "-S", __file__, "child", str(os.getpid())]
            subprocess.Popen(command, stdout=log, start_new_session=True)
    if act.get("semaphore"):
        lock = multiprocessing.get_context("spawn").Lock()
        print(f"semaphore {lock._semlock.name}")  # type: ignore[attr-defined]
    print(f"start {start} of {os.environ['TRAININGRUN_POD_NAME']}", flush=True)
    if "say" in act:
        Path(os.environ["TRAININGRUN_TERMINATION_LOG"]).write_text(json.dumps(act["say"]))
    if act.get("exit") is None:
        while True:
            time.sleep(60)
    time.sleep(act.get("after", 0.0))
    if act["exit"] == 137:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(act["exit"])


def child(parent: int) -> None:
    """A rank: tied to its agent by the kernel, as the real ones are."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    while os.getppid() == parent:
        time.sleep(60)


if __name__ == "__main__":
    child(int(sys.argv[2])) if sys.argv[1:2] == ["child"] else main()
