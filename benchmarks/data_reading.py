"""How fast a rank reads its micro-batches, beside a memory-mapped Hugging Face dataset with a DataLoader.

    python -m benchmarks.data_reading [--json PATH] [--page]

In the trainer's environment, on one core and from the page cache: it is about the work of the reader, not about disks.
Ways alternate, and the median of ROUNDS counts. The dataset's rows are cut in advance at the sequence length, as
`group_texts` of the examples does, and need no masks; ours are cut while they are read, with labels, document
numbers, positions and checksums. The last part trains nothing for a fixed time a step, and shows what is left to wait.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import torch

from benchmarks.page import write_section
from benchmarks.rows import verdict
from trainer.data.batches import BatchReader
from trainer.data.mixture import Stage
from trainer.data.packing import PACKINGS
from trainer.data.prefetch import DEPTH, Prefetch
from trainer.data.row_plan import make_rows
from trainer.data.samples import Samples
from trainer.data.store import TokenStore
from trainer.data.store_writer import StoreWriter

ROUNDS = 5
TOKENS = 8_000_000
LENGTH = 2048
BATCH = 16
STEPS = 40
VOCABULARY = 32_000
COMPUTE_SECONDS = 0.05  # of a pretended step
WAIT_BAR = 0.03  # of it, with reading ahead
LOADER, AHEAD = "datasets + DataLoader", "with reading ahead"


def a_store(folder: Path) -> TokenStore:
    """Documents of mixed length, log-normal around 600 tokens."""
    numbers = np.random.default_rng(1)
    lengths = random.Random(2)
    with StoreWriter(folder, VOCABULARY, 0) as writer:
        written = 0
        while written < TOKENS:
            length = min(20_000, max(2, int(lengths.lognormvariate(6.0, 1.0))))
            writer.add(numbers.integers(1, VOCABULARY, length - 1).tolist())
            written += length
    return TokenStore.at(folder)


def a_reader(store: TokenStore, packing: str, folder: Path) -> BatchReader:
    samples = Samples(
        [make_rows(store, LENGTH, packing, folder)],
        names=["only"],
        stages=[Stage(0, (1,))],
        seed=1,
        sequence_length=LENGTH,
    )
    return BatchReader(
        samples,
        global_batch=BATCH,
        micro_batch=BATCH,
        accumulation=1,
        data_rank=0,
        data_degree=1,
        log_path=folder / "log.jsonl",
        epoch=1,
    )


def a_loader(store: TokenStore, folder: Path) -> Iterator[Any]:
    """The tokens in blocks, on disk as Arrow, in a shuffled order."""
    whole = store.tokens // LENGTH
    blocks = store.read(0, whole * LENGTH).reshape(whole, LENGTH)
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"input_ids": blocks}).save_to_disk(str(folder / "arrow"))
    rows = datasets.load_from_disk(str(folder / "arrow")).with_format("torch")
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True, drop_last=True)
    while True:
        yield from loader


def seconds_of(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - started) / STEPS


def reading(store: TokenStore, folder: Path) -> dict[str, float]:
    """Way -> seconds a step, median of alternating rounds."""
    numbers = {packing: iter(range(1, 10**9)) for packing in PACKINGS}
    readers = {packing: a_reader(store, packing, folder / packing) for packing in PACKINGS}
    loader = a_loader(store, folder)
    ways: dict[str, Callable[[], object]] = {
        packing: lambda packing=packing: readers[packing].step(next(numbers[packing])) for packing in PACKINGS
    }
    ways[LOADER] = lambda: next(loader)
    for step in ways.values():
        step()
    rounds = [{name: seconds_of(step) for name, step in ways.items()} for _ in range(ROUNDS)]
    return {name: median(one[name] for one in rounds) for name in ways}


def waiting(store: TokenStore, folder: Path) -> dict[str, float]:
    """Depth of reading ahead -> seconds that a step waits for its data, when it computes for COMPUTE_SECONDS."""
    found = {}
    for depth in (0, DEPTH):
        reader = Prefetch(
            a_reader(store, "Concatenate", folder / f"wait-{depth}"), last_step=STEPS, depth=depth
        )
        waits = []
        for step in range(1, STEPS + 1):
            reader.step(step)
            waits.append(reader.waited)
            time.sleep(COMPUTE_SECONDS)
        reader.close()
        found[AHEAD if depth else "without"] = median(waits[1:])
    return found


def bar(waits: dict[str, float]) -> tuple[bool, str]:
    share = waits[AHEAD] / COMPUTE_SECONDS
    return share <= WAIT_BAR, f"a step waits {share:.1%} of its time for data, bar {WAIT_BAR:.0%}"


def page(steps: dict[str, float], waits: dict[str, float]) -> str:
    met, text = bar(waits)
    lines = [
        f"`make bench-data`: {BATCH} sequences of {LENGTH} tokens a step on one core, from the page cache; medians of"
        f" {ROUNDS} alternating",
        "rounds. Ours cuts rows, makes labels, document numbers and positions, and verifies checksums while it reads.",
        "",
        "| | ms a step | million tokens/s | beside the DataLoader |",
        "|---|---|---|---|",
    ]
    for way, seconds in steps.items():
        rate = BATCH * LENGTH / seconds / 1e6
        lines.append(f"| {way} | {seconds * 1e3:.2f} | {rate:.1f} | {steps[LOADER] / seconds:.2f} |")
    waited = ", ".join(f"{way} {seconds * 1e3:.2f} ms" for way, seconds in waits.items())
    lines += ["", f"Waiting for data in a step of {COMPUTE_SECONDS * 1e3:.0f} ms: {waited}.", ""]
    return "\n".join([*lines, f"- {'met' if met else '**missed**'}: {text}", ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_reading")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = a_store(folder / "store")
        steps, waits = reading(store, folder), waiting(store, folder)
    other = steps[LOADER]
    print(f"{BATCH} sequences of {LENGTH} tokens a step, median of {ROUNDS} rounds of {STEPS} steps")
    for way, seconds in steps.items():
        rate = BATCH * LENGTH / seconds / 1e6
        print(f"  {way:22} {seconds * 1e3:7.2f} ms   {rate:6.1f} M tokens/s   {other / seconds:5.2f} x")
    print(f"waiting for data in a step that computes for {COMPUTE_SECONDS * 1e3:.0f} ms")
    for way, seconds in waits.items():
        print(f"  {way:22} {seconds * 1e3:7.2f} ms")
    met, text = bar(waits)
    print(verdict(met, text))
    if options.json:
        rows = {"secondsAStep": steps, "dataWaitSeconds": waits, "tokensAStep": BATCH * LENGTH}
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.page:
        write_section("data", page(steps, waits))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
