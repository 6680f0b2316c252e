"""Run by the trainer's Python: are the logged reads of the surviving lineage those of the definition?

Reads a question as JSON on stdin (see lineage.check_reads). The order is checked against its definition: over every
whole epoch of a source each of its samples appears exactly once, and ids and token hashes are recomputed from the token
stores.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.data import read_data
from trainer.data.prepare import PreparedData, prepared, samples_of
from trainer.data.row_plan import ConcatenatedRows, Rows, open_rows
from trainer.data.samples import Sample


class Wrong(Exception):
    pass


def main() -> int:
    question = json.load(sys.stdin)
    spec, cache = question["spec"], Path(question["cache"])
    surviving = {int(step): epoch for step, epoch in question["surviving"].items()}
    config = read_data(spec["data"], run_tokens=sys.maxsize)  # the rest of the spec names places in pods
    length, size = spec["training"]["sequenceLength"], spec["training"]["globalBatch"]
    batch = size.get("sequences") or size["tokens"] // length
    data = prepared(spec, cache)
    rows = [open_rows(store, length, config.packing, cache) for store in data.stores]
    samples = samples_of(data, config, length, cache)
    read = reads(question["reads"], surviving)
    trained: list[Sample] = []
    try:
        for step in sorted(read):
            trained += check_step(step, read[step], samples.at((step - 1) * batch, batch), data, rows, length)
        for source, of in enumerate(rows):
            check_epochs(source, of, [sample.id for sample in trained if sample.source == source])
    except Wrong as wrong:
        print(wrong)
        return 1
    return 0


def reads(paths: list[str], surviving: dict[int, int]) -> dict[int, list[dict[str, Any]]]:
    """Lines of the log by step, of the epoch in which the step survived."""
    found: dict[int, list[dict[str, Any]]] = {step: [] for step in surviving}
    for path in paths:
        for line in map(json.loads, Path(path).read_text().splitlines()):
            if surviving.get(line["step"]) == line["epoch"]:
                found[line["step"]].append(line)
    return found


def check_step(
    step: int,
    lines: list[dict[str, Any]],
    wanted: list[Sample],
    data: PreparedData,
    rows: list[Rows],
    length: int,
) -> list[Sample]:
    at: dict[int, tuple[Sample, str]] = {}
    for line in lines:
        for position, source, sample, digest in zip(
            line["positions"], line["sources"], line["ids"], line["hash"], strict=True
        ):
            if position in at:
                raise Wrong(f"step {step}: position {position} was read twice in epoch {line['epoch']}")
            at[position] = Sample(source, sample), digest
    if sorted(at) != list(range(len(wanted))):
        raise Wrong(f"step {step}: positions {sorted(at)}, wanted 0..{len(wanted) - 1}")
    found = [at[position][0] for position in range(len(wanted))]
    if found != wanted:
        raise Wrong(f"step {step}: samples {found}, the definition says {wanted}")
    for sample, digest in at.values():
        if digest != digest_of(sample, data, rows, length):
            raise Wrong(f"step {step}: sample {sample} was read with other tokens")
    return found


def digest_of(sample: Sample, data: PreparedData, rows: list[Rows], length: int) -> str:
    """Of the sample's tokens, and of those after them that are targets."""
    store, of = data.stores[sample.source], rows[sample.source]
    if isinstance(of, ConcatenatedRows):
        tokens = store.read(sample.id * length, (sample.id + 1) * length + 1)
    else:
        tokens = np.concatenate([store.read(one.start, one.end + one.goes_on) for one in of.spans(sample.id)])
    return hashlib.blake2b(tokens.astype("<u4").tobytes(), digest_size=16).hexdigest()


def check_epochs(source: int, rows: Rows, ids: list[int]) -> None:
    for first in range(0, len(ids), rows.count):
        counts = Counter(ids[first : first + rows.count])
        often = [sample for sample, count in counts.items() if count != 1]
        if often:
            raise Wrong(f"source {source}, its epoch from sample {first}: {often[:10]} not exactly once")


if __name__ == "__main__":
    sys.exit(main())
