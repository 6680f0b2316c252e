"""TFLOPS of an accelerator as a row's source counts them.

    "model, causal attention"     forward and backward, half of the scores
    "model, whole attention"      all scores
    "hardware, whole attention"   and the forward pass that is computed again
    "parameters"                  6 (8 with recomputation) operations for each parameter and token

Tables of fine-tuning count 6 for each parameter and token, and 4 where only adapters are trained.
"""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.planner_accuracy.rows import Reading
from trainingrun.planner.cost.types import Recompute
from trainingrun.planner.models.counts import active_parameters
from trainingrun.planner.models.flops import flops_per_token

# Where a source's own count differs: hybrids' scans and predicting layers; a feed-forward with a gate of
# another kind than SwiGLU as two matrices, and windows as if there were none.
_COUNTED = {("megatron-bridge", "nemotron_h"): 1.083}


def flops_of_token(reading: Reading) -> float:
    work = reading.timed
    model = work.model
    factor = _COUNTED.get((reading.source.framework, model.model_type), 1.0)
    if model.model_type == "gpt_oss" and reading.source.framework == "megatron-bridge":
        model = replace(model, gated=False, sliding_layers=0)
    if reading.adapter == "LoRA" and reading.source.framework == "automodel":
        factor = 4.0 / 6.0
    recomputed = work.layout.recompute is Recompute.FULL
    rule = reading.source.flops
    if reading.adapter and reading.source.framework == "nemo":
        passes = 6.0 if reading.adapter == "SFT" else 4.0
        return passes * active_parameters(model)
    if rule == "parameters":
        return (8.0 if recomputed else 6.0) * active_parameters(model)
    attention = "causal" if "causal" in rule else "whole"
    hardware = rule.startswith("hardware")
    return factor * flops_per_token(
        model, work.sequence_length, attention=attention, recomputed=hardware and recomputed
    )


def tflops(reading: Reading, seconds: float) -> float:
    if not seconds or math.isnan(seconds):
        return math.nan
    work = reading.timed
    tokens = work.sequence_length * work.global_batch
    return flops_of_token(reading) * tokens / seconds / work.layout.world / 1e12
