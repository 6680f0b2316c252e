"""What a careful torchrun user writes: DDP on gloo, a checkpoint every few steps, resume from the newest.

Started by torchrun (see torchrun_elastic.py); uses none of our code. Same model and batch as the run it is compared
with. Each rank appends one JSON line per optimizer step to its own file, so that the parent sees who stepped when.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

STARTED = time.time()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

IMPORTED = time.time()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="JSON of a Llama config")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--sequence-length", type=int, required=True)
    parser.add_argument("--checkpoint-every", type=int, required=True)
    return parser.parse_args()


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    temporary = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, temporary)
    temporary.replace(path)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    config = LlamaConfig(**json.loads(args.config), use_cache=False)
    model = DistributedDataParallel(LlamaForCausalLM(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    checkpoint, step = args.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    name = f"steps-{socket.gethostname()}-{os.getpid()}-{STARTED:.3f}.jsonl"  # a pod's pids are its own
    with (args.folder / name).open("a", buffering=1) as log:
        log.write(json.dumps({"import_seconds": IMPORTED - STARTED, "started": STARTED}) + "\n")
        while True:
            generator = torch.Generator().manual_seed(step)
            shape = (args.global_batch, args.sequence_length + 1)
            batch = torch.randint(0, config.vocab_size, shape, generator=generator)[rank::world]
            logits = model(input_ids=batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            log.write(
                json.dumps({"at": time.time(), "step": step, "world": world, "pid": os.getpid()}) + "\n"
            )
            if rank == 0 and step % args.checkpoint_every == 0:
                save(checkpoint, model.module, optimizer, step)


if __name__ == "__main__":
    main()
