"""Run by the trainer's Python: are the logged reads of the surviving lineage those of the permutation?

Reads a question as JSON on stdin (see lineage.check_reads). The order is checked against its definition: over every
whole data epoch each sample id appears exactly once, and ids and token hashes are recomputed from the token store.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from trainer.data.order import SampleOrder
from trainer.data.prepare import prepared


def main() -> int:
    question = json.load(sys.stdin)
    spec = question["spec"]
    surviving = {int(step): epoch for step, epoch in question["surviving"].items()}
    length, batch = spec["training"]["sequenceLength"], spec["training"]["globalBatch"]["sequences"]
    store = prepared(spec, Path(question["cache"])).train
    tokens = np.concatenate(
        [np.asarray(store.sample(i, length)[:length]) for i in range(store.sequences(length))]
    )
    order = SampleOrder(store.sequences(length), spec["data"]["seed"])

    read: dict[int, dict[int, tuple[int, str]]] = {step: {} for step in surviving}
    for path in question["reads"]:
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            if surviving.get(row["step"]) != row["epoch"]:
                continue
            for position, sample, digest in zip(row["positions"], row["ids"], row["hash"], strict=True):
                if position in read[row["step"]]:
                    return fail(
                        f"step {row['step']}: position {position} was read twice in epoch {row['epoch']}"
                    )
                read[row["step"]][position] = (sample, digest)

    trained: list[int] = []
    for step in sorted(read):
        if sorted(read[step]) != list(range(batch)):
            return fail(f"step {step}: positions {sorted(read[step])}, wanted 0..{batch - 1}")
        ids = [read[step][position][0] for position in range(batch)]
        wanted = order.ids((step - 1) * batch, batch)
        if ids != wanted:
            return fail(f"step {step}: samples {ids}, the permutation says {wanted}")
        for position, sample in enumerate(ids):
            own = hashlib.blake2b(
                np.append(
                    tokens[sample * length : (sample + 1) * length], store.sample(sample, length)[length:]
                )
                .astype("<u4")
                .tobytes(),
                digest_size=16,
            ).hexdigest()
            if own != read[step][position][1]:
                return fail(f"step {step}: sample {sample} was read with other tokens")
        trained += ids
    for first in range(0, len(trained) - order.samples + 1, order.samples):
        often = [
            sample for sample, count in Counter(trained[first : first + order.samples]).items() if count != 1
        ]
        if often:
            return fail(f"data epoch from position {first}: samples {often[:10]} not exactly once")
    return 0


def fail(message: str) -> int:
    print(message)
    return 1


if __name__ == "__main__":
    sys.exit(main())
