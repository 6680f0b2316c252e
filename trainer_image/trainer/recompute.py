"""Trading computation for memory: layers that keep only their input, and are computed again in the backward pass.

Selective does that to every second layer, Full to all. The second computation is the same as the first, random
numbers included, so loss and gradients do not change by a bit. It is a property of the layer's own forward, inside of
what sharding and tensor parallelism hang on it: nothing is gathered a second time. Called before stages are cut.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch.utils.checkpoint import checkpoint

from trainer.stage import Stage

EVERY = {"None": 0, "Selective": 2, "Full": 1}


def recompute(stages: Sequence[Stage], mode: str) -> None:
    """`mode`: a key of EVERY."""
    every = EVERY[mode]
    if not every:
        return
    for stage in stages:
        for index, layer in enumerate(stage.layers):
            if index % every == 0:
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(stages: Sequence[Stage]) -> None:
    """Each layer by itself: layers share their code, and what surrounds them changes with the layout."""
    for stage in stages:
        for layer in stage.layers:
            layer.compile()
