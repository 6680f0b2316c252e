"""The data process: prepares the run's data outside the agent, so that the agent's heap stays small.

Started by the agent; reads what to do as JSON from standard input, and says on standard output, one JSON
object a line, what it is doing and how it ended. Prepared data is cached by content, so a second start is a
look-up.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from trainer.agent import tether
from trainer.errors import TrainerError
from trainingrun.protocol.exit_codes import NEVER_RESTARTED


def main() -> int:
    tether.tie(int(sys.argv[1]))
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is talk

    def tell(**message: Any) -> None:
        line.write(json.dumps(message) + "\n")

    order = json.load(sys.stdin)
    try:
        module = importlib.import_module(order["module"])
        module.prepare(order["spec"], Path(order["cacheDir"]), lambda text: tell(say=str(text)))
    except TrainerError as error:
        tell(problem=str(error), permanent=error.exit_code in NEVER_RESTARTED)
        return int(error.exit_code)
    except Exception:  # noqa: BLE001 - the edge of the process
        tell(problem=traceback.format_exc(), permanent=False)
        return 1
    tell(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
