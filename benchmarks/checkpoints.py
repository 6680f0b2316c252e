"""What saving costs: `make bench-checkpoints`. Ours beside `torch.save` of the whole state and torch's own dcp, in the
same run: how long a step is kept waiting, and how long until it is on disk. Ends with 1 when a bar is missed.

Pairs alternate, and medians are told, because the disk of a shared machine is not the same from one second to the next;
`dd` and the speed of sha256 stand beside for scale. One process: several of them would measure the scheduler. Ours has
a sha256 of every block, the others have none; all of them are synced.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.trainer.worlds import run_world
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.page import write_section
from benchmarks.rows import verdict
from trainer.checkpoint import durable
from trainer.checkpoint.restore import from_durable
from trainer.checkpoint.staging import Staging
from trainer.checkpoint.store import sync_folder

State = dict[str, torch.Tensor]
Times = tuple[float, float]  # seconds that the step waits, seconds until it is durable
WIDTH = 1024
WRITE_BAR = 0.8  # of the speed of dcp.save, which hashes nothing


def a_state(megabytes: int) -> State:
    """Weights and two moments of matrices of 4 MiB each, as float32."""
    count = max(1, megabytes * (1 << 20) // (3 * 4 * WIDTH * WIDTH))
    kinds = ("model.{}", "optim.{}.exp_avg", "optim.{}.exp_avg_sq")
    return {
        kind.format(f"layers.{n}.weight"): torch.randn(WIDTH, WIDTH) for n in range(count) for kind in kinds
    }


class Ours:
    def __init__(self) -> None:
        self._staging = Staging()
        self._thread = ThreadPoolExecutor(1)
        self._step = 0

    def __call__(self, state: State, folder: Path) -> Times:
        self._step += 1
        started = time.perf_counter()
        copies = self._staging.copy(state)
        stalled = time.perf_counter() - started
        self._thread.submit(self._write, copies, folder).result()
        return stalled, time.perf_counter() - started

    def _write(self, copies: State, folder: Path) -> None:
        durable.save(
            folder,
            step=self._step,
            epoch=1,
            tensors=copies,
            scalars={},
            parent="",
            run_uid="bench",
            keep_last=None,
            plan={},
            versions={},
        )


def torch_save(state: State, folder: Path) -> Times:
    started = time.perf_counter()
    folder.mkdir()
    with (folder / "state.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    seconds = time.perf_counter() - started
    return seconds, seconds


def dcp_save(state: State, folder: Path) -> Times:
    started = time.perf_counter()
    dcp.save(dict(state), checkpoint_id=folder, no_dist=True)
    seconds = time.perf_counter() - started
    return seconds, seconds


def dcp_async(state: State, folder: Path) -> Times:
    started = time.perf_counter()
    future = dcp.async_save(dict(state), checkpoint_id=folder, no_dist=True)
    stalled = time.perf_counter() - started
    future.result()
    return stalled, time.perf_counter() - started


def measure(megabytes: int, pairs: int, place: Path) -> list[dict[str, object]]:
    state = a_state(megabytes)
    size = sum(tensor.nbytes for tensor in state.values())
    ways: dict[str, Callable[[State, Path], Times]] = {
        "ours": Ours(),
        "torch.save": torch_save,
        "dcp.save": dcp_save,
        "dcp.async_save": dcp_async,
    }
    taken: dict[str, list[Times]] = {name: [] for name in ways}
    for number in range(pairs + 1):  # the first round makes the buffers, and does not count
        for name, way in ways.items():
            folder = place / f"{name}-{number}"
            times = way(state, folder)
            if number:
                taken[name].append(times)
            if number < pairs or name != "ours":
                shutil.rmtree(folder)
    rows: list[dict[str, object]] = []
    reference = median(total for _, total in taken["dcp.save"])
    for name, times in taken.items():
        total = median(total for _, total in times)
        rows.append(
            {
                "way": name,
                "bytes": size,
                "stallSeconds": median(stall for stall, _ in times),
                "durableSeconds": total,
                "speedBesideDcpSave": reference / total,
            }
        )
    rows.append(
        {
            "way": "restore, verified",
            "bytes": size,
            "durableSeconds": _restored(state, place / f"ours-{pairs}"),
        }
    )
    rows.append({"way": "dd conv=fsync", "bytes": size, "durableSeconds": _written(size, place / "dd")})
    rows.append({"way": "sha256, one core", "bytes": size, "durableSeconds": _hashed(state)})
    return rows


def _restored(state: State, location: Path) -> float:
    wanted = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    name = next(path.name for path in location.iterdir() if path.name.startswith("step-"))
    started = time.perf_counter()
    from_durable(location, name, wanted)
    seconds = time.perf_counter() - started
    wrong = [name for name in state if not torch.equal(wanted[name], state[name])]
    if wrong:
        raise RuntimeError(f"restored otherwise than saved: {wrong[0]}")
    return seconds


def _written(size: int, path: Path) -> float:
    block = bytes(1 << 20)
    started = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started


def _hashed(state: State) -> float:
    started = time.perf_counter()
    for tensor in state.values():
        hashlib.sha256(memoryview(tensor.numpy()).cast("B"))
    return time.perf_counter() - started


def restoring(megabytes: int, rounds: int, place: Path) -> dict[str, float]:
    """Way -> seconds of the slower of two ranks that shard what one process has saved; ours verifies every byte."""
    state = a_state(megabytes)
    durable.save(
        place / "one",
        step=1,
        epoch=1,
        tensors=state,
        scalars={},
        parent="",
        run_uid="bench",
        keep_last=None,
        plan={},
        versions={},
    )
    (folder,) = [path for path in (place / "one").iterdir() if path.is_dir()]
    found = run_world(restore_rank, 2, place / "one", folder.name, list(state), rounds)
    return {
        way: median(max(times) for times in zip(*(rank[way] for rank in found), strict=True))
        for way in found[0]
    }


def restore_rank(
    rank: int, location: Path, name: str, names: list[str], rounds: int
) -> dict[str, list[float]]:
    mesh = init_device_mesh("cpu", (2,))
    wanted: State = {
        one: DTensor.from_local(torch.empty(WIDTH // 2, WIDTH), mesh, [Shard(0)], run_check=False)
        for one in names
    }
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: from_durable(location, name, wanted),
        "dcp.load": lambda: dcp.load(dict(wanted), checkpoint_id=location / name),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):  # the first one reads the files into the page cache
        for way, load in ways.items():
            dist.barrier()
            started = time.perf_counter()
            load()
            if number:
                taken[way].append(time.perf_counter() - started)
    return taken


def page(rows: list[dict[str, object]], restored: dict[str, float], pairs: int) -> str:
    size = int(str(rows[0]["bytes"]))
    lines = [
        f"`make bench-checkpoints`: a state of {size / 1e6:.0f} MB in one process, medians of {pairs} alternating"
        " rounds, everything synced; ours",
        "hashes every byte (SHA-256), the others hash nothing.",
        "",
        "| | a step waits | durable | MB/s | speed beside dcp.save |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        seconds = float(str(row["durableSeconds"]))
        stall = f"{float(str(row['stallSeconds'])):.3f} s" if "stallSeconds" in row else ""
        ratio = f"{float(str(row['speedBesideDcpSave'])):.2f}" if "speedBesideDcpSave" in row else ""
        lines.append(f"| {row['way']} | {stall} | {seconds:.2f} s | {size / seconds / 1e6:,.0f} | {ratio} |")
    lines += [
        "",
        "Restored by two ranks, sharded, from what one process saved: " + _restored_text(restored) + ".",
    ]
    lines += ["", *(f"- {'met' if met else '**missed**'}: {text}" for met, text in bars(rows))]
    return "\n".join(lines) + "\n"


def _restored_text(restored: dict[str, float]) -> str:
    return ", ".join(f"{way} {seconds:.2f} s" for way, seconds in restored.items())


def bars(rows: list[dict[str, object]]) -> list[tuple[bool, str]]:
    by_way = {str(row["way"]): row for row in rows}
    speed = float(str(by_way["ours"]["speedBesideDcpSave"]))
    waits, other = (float(str(by_way[way]["stallSeconds"])) for way in ("ours", "torch.save"))
    return [
        (speed >= WRITE_BAR, f"writing is {speed:.2f} x as fast as dcp.save, bar {WRITE_BAR:g}"),
        (waits <= other, f"a step waits {waits:.3f} s, with torch.save {other:.3f} s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints")
    parser.add_argument("--megabytes", type=int, default=768, help="size of the state")
    parser.add_argument("--pairs", type=int, default=5, help="rounds that count")
    parser.add_argument(
        "--place", type=Path, help="a folder on the disk to measure (default: a temporary one)"
    )
    parser.add_argument("--json", type=Path, help="write the rows there too")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.place) as folder:
        rows = measure(options.megabytes, options.pairs, Path(folder))
        restored = restoring(options.megabytes, options.pairs, Path(folder))
    print(f"{'':20}{'step waits':>12}{'durable':>12}{'MB/s':>10}{'x dcp.save':>12}")
    for row in rows:
        seconds = float(str(row["durableSeconds"]))
        stall = f"{float(str(row['stallSeconds'])):.3f} s" if "stallSeconds" in row else "-"
        ratio = f"{float(str(row['speedBesideDcpSave'])):.2f}" if "speedBesideDcpSave" in row else "-"
        speed = int(str(row["bytes"])) / seconds / 1e6
        print(f"{row['way']!s:20}{stall:>12}{seconds:>10.2f} s{speed:>10.0f}{ratio:>12}")
    print(f"restored by two ranks, sharded: {_restored_text(restored)}")
    for met, text in bars(rows):
        print(verdict(met, text))
    if options.json:
        found = {"rows": rows, "restoredByTwoRanksSeconds": restored}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.page:
        write_section("checkpoints", page(rows, restored, options.pairs))
    return 0 if all(met for met, _ in bars(rows)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
