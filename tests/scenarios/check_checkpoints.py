"""Run by the trainer's Python: reads every byte of every committed checkpoint in the folders named on stdin.

The reader is the trainer's own, which verifies each item's checksum. Prints how many checkpoints it read; what
is damaged ends it with a traceback.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from trainer.checkpoint.manifest import damaged_manifests, list_checkpoints, read_manifest
from trainer.checkpoint.restore import from_durable


def main() -> int:
    count = 0
    for location in map(Path, json.load(sys.stdin)):
        if damaged := damaged_manifests(location):
            print(f"{location}: not whole: {damaged}", file=sys.stderr)
            return 1
        for checkpoint in list_checkpoints(location):
            items = read_manifest(location, checkpoint.name).items
            tensors = {item.name: torch.empty(item.shape, dtype=getattr(torch, item.dtype)) for item in items}
            scalars = from_durable(location, checkpoint.name, tensors)
            if scalars["step"] != checkpoint.step:
                print(f"{location / checkpoint.name} holds step {scalars['step']}", file=sys.stderr)
                return 1
            count += 1
    print(count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
