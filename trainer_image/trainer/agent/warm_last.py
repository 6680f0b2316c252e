"""Last import of the fork server: loads the training code, freezes the heap and tells the agent how it went.

A frozen heap keeps a collection in a rank from copying the pages that all ranks share. While modules are loaded,
almost nothing is garbage, so looking for it waits: that is a sixth of the time. Nothing here may start a thread: it
would not exist in the ranks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from trainer.agent import server_environment


def _load() -> None:
    began = time.monotonic()
    problem = ""
    gc.disable()
    try:
        importlib.import_module(os.environ[server_environment.RANK_MODULE])
        importlib.import_module("trainer.agent.entry")
    except BaseException:  # noqa: BLE001 - whatever it was, the agent must hear of it
        problem = traceback.format_exc()
    gc.collect()
    gc.freeze()
    gc.enable()
    answer = {
        "seconds": time.monotonic() - began,
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "problem": problem[-16000:],
    }
    pipe = os.open(os.environ[server_environment.READY_PIPE], os.O_WRONLY)
    os.write(pipe, json.dumps(answer).encode())
    os.close(pipe)
    if problem:
        sys.exit(1)


_load()
