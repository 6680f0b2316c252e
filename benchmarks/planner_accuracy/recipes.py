"""Arguments of Megatron-LM's own functional tests by test name: what their rows leave out, as the project
publishes it.

`megatron_recipes.json` holds inputs only (the files `model_config.yaml`), no measured value; it is written by

    python -m benchmarks.planner_accuracy.recipes --checkout DIRECTORY    # a git directory of Megatron-LM

A test that is not in it is read from its name alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("megatron_recipes.json")
TESTS = "tests/functional_tests/test_cases"
SKIPPED = re.compile(r"inference|grpo|converter|^bert/|^t5/|^multimodal|^mimo/|^common/|bert-|t5-")
_KEPT = """
CUBLAS_WORKSPACE_CONFIG account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
attention-backend attention-dropout cross-entropy-fusion-impl cross-entropy-loss-fusion cuda-graph-impl
data-parallel-sharding-strategy decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers
defer-embedding-wgrad-compute delay-wgrad-compute disable-bias-linear exp-avg-dtype exp-avg-sq-dtype
experimental-attention-variant expert-tensor-parallel-size ffn-hidden-size fine-grained-activation-offloading
first-last-layers-bf16 fp16 fp8-format fp8-param-gather fp8-recipe grad-reduce-in-bf16 hidden-dropout
hybrid-layer-pattern hybrid-override-pattern kv-channels kv-lora-rank linear-attention-freq linear-key-head-dim
linear-num-key-heads linear-num-value-heads linear-value-head-dim main-grads-dtype main-params-dtype
make-vocab-size-divisible-by mamba-head-dim mamba-num-groups mamba-num-heads mamba-state-dim
max-position-embeddings microbatch-group-size-per-virtual-pipeline-stage moe-ffn-hidden-size moe-grouped-gemm
moe-latent-size moe-layer-freq moe-permute-fusion moe-router-topk moe-shared-expert-gate
moe-shared-expert-intermediate-size moe-token-dispatcher-type mtp-num-layers multi-latent-attention
no-gradient-accumulation-fusion normalization num-distributed-optimizer-instances num-experts num-query-groups
offload-modules optimizer overlap-grad-reduce overlap-moe-expert-parallel-comm overlap-param-gather
padded-vocab-size pipeline-model-parallel-layout position-embedding-type q-lora-rank qk-head-dim qk-layernorm
qk-pos-emb-head-dim quick-geglu recompute-granularity recompute-modules squared-relu swiglu tokenizer-type
tp-comm-overlap transformer-impl untie-embeddings-and-output-weights use-flash-attn use-megatron-fsdp
use-torch-fsdp2 v-head-dim vocab-size wgrad-deferral-limit window-attn-skip-freq window-size
"""
KEPT = frozenset(_KEPT.split())


@cache
def _table() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return table


def recipe(name: str) -> dict[str, str] | None:
    """Arguments of the test `name` ("gpt/gpt3_…"); None where it is not known."""
    table = _table()
    return table.get(name) or table.get(name.removesuffix("_1node"))


def _arguments(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*(?:--)?([\w-]+):\s*(.*?)\s*(#.*)?$", line)
        if match and match.group(1) in KEPT:
            found[match.group(1)] = match.group(2).strip("\"'")
    return found


def _git(directory: str, *arguments: str) -> str:
    return subprocess.run(
        ["git", f"--git-dir={directory}", *arguments], capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", required=True, help="git directory of NVIDIA/Megatron-LM")
    parser.add_argument("--commit", default="HEAD")
    given = parser.parse_args()
    files = _git(given.checkout, "ls-tree", "-r", "--name-only", given.commit, TESTS).split()
    table = {}
    for file in files:
        name = "/".join(file.split("/")[3:5])
        if file.endswith("model_config.yaml") and not SKIPPED.search(name):
            table[name] = _arguments(_git(given.checkout, "show", f"{given.commit}:{file}"))
    # Another size of the node changes nothing else, mostly.
    for name in [name for name in table if name.endswith("_1node")]:
        if table[name] == table.get(name.removesuffix("_1node")):
            del table[name]
    FILE.write_text(json.dumps(dict(sorted(table.items())), indent=0, sort_keys=True) + "\n")
    print(f"{len(table)} tests in {FILE.name}")


if __name__ == "__main__":
    main()
