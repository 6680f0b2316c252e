"""What Megatron-LM's own tests compute, from their published arguments (see `recipes`) and, for tests that are not in
that table, from their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.planner_accuracy.recipes import recipe
from trainingrun.planner.cost.types import Framework
from trainingrun.planner.types import Experts, Hybrid, LatentAttention

GPT2_VOCABULARY = 50257


@dataclass(frozen=True)
class MegatronTest:
    """Beyond the columns of a row. `model`: fields of `ModelShape`."""

    name: str
    model: dict[str, Any]
    expert_tensor: int | None  # None: as tensor
    dropout: bool
    arguments: dict[str, str] = field(default_factory=dict)

    def framework(self, base: Framework) -> Framework:
        """The implementation that the arguments choose."""
        given = self.arguments
        coefficients = dict(base.coefficients)
        local = given.get("transformer-impl") == "local"
        if local:
            coefficients["memory_local"] = 1.0
        if not local or "_te_" in self.name.replace("uninstall_te", ""):
            coefficients["memory_engine"] = 1.0
        if "CUBLAS_WORKSPACE_CONFIG" in given:
            coefficients["memory_workspace_mib"] = 32.0
        if "microbatch-group-size-per-virtual-pipeline-stage" in given:
            group = float(given["microbatch-group-size-per-virtual-pipeline-stage"])
            coefficients["memory_micro_batch_group"] = group
        if given.get("moe-grouped-gemm") == "true":
            coefficients["memory_grouped_products"] = 1.0
        else:
            coefficients["memory_experts_one_by_one"] = 1.0
        coefficients["memory_expert_imbalance"] = 0.05  # nothing has balanced their few and untrained experts
        coefficients["memory_expert_inputs"] = 1.0 if given.get("moe-permute-fusion") == "true" else 2.0
        modules = given.get("recompute-modules", "core_attn")
        for word, name in (
            ("layernorm", "memory_selective_norms"),
            ("act", "memory_selective_activation"),
            ("mlp", "memory_selective_feed_forward"),
            ("mla_up_proj", "memory_selective_latent"),
        ):
            if word in modules.replace("core_attn", ""):
                coefficients[name] = 1.0
        if "core_attn" not in modules:
            coefficients["memory_selective_keeps_scores"] = 1.0
        if given.get("cross-entropy-fusion-impl", "native") == "native":
            coefficients["memory_fused_logit"] = 10.0
        if given.get("defer-embedding-wgrad-compute") == "true":
            coefficients["memory_logit"] = 6.0 + 2.0 * float(given.get("wgrad-deferral-limit", 0))
        if given.get("fine-grained-activation-offloading") == "true":
            coefficients["memory_offloads_activations"] = 0.29
        multiple = int(given.get("make-vocab-size-divisible-by", 128))
        return replace(
            base,
            coefficients=coefficients,
            fused_loss=given.get("cross-entropy-loss-fusion") == "true",
            flash_attention=given.get("attention-backend", "auto") not in ("unfused", "local")
            and given.get("transformer-impl") != "local",
            overlaps_data=given.get("overlap-grad-reduce") == "true",
            padded_vocabulary=multiple,
        )


def megatron_test(name: str, heads: int, hidden: int, layers: int) -> MegatronTest:
    given = recipe(name)
    if given is None:
        given = _from_name(name)
    return MegatronTest(
        name=name,
        model=_model(given, heads, hidden, layers),
        expert_tensor=int(given["expert-tensor-parallel-size"])
        if "expert-tensor-parallel-size" in given
        else None,
        dropout=float(given.get("hidden-dropout", 0.1)) > 0,
        arguments=given,
    )


def stage_layers(test: MegatronTest, layers: int, pipeline: int, virtual: int) -> tuple[int, ...]:
    """Layers of each pipeline rank; empty where they are even."""
    given = test.arguments
    if pipeline == 1:
        return ()
    if "pipeline-model-parallel-layout" in given:
        return _laid_out(given["pipeline-model-parallel-layout"], pipeline)
    first = int(given.get("decoder-first-pipeline-num-layers", 0))
    last = int(given.get("decoder-last-pipeline-num-layers", 0))
    if first or last:
        ends = bool(first) + bool(last)
        middle = (layers - first - last) // max(1, pipeline - ends)
        return (first or middle, *([middle] * (pipeline - 2)), last or middle)
    embedding = given.get("account-for-embedding-in-pipeline-split") == "true"
    loss = given.get("account-for-loss-in-pipeline-split") == "true"
    if embedding or loss:
        each = (layers + embedding + loss) // pipeline
        return (each - embedding, *([each] * (pipeline - 2)), each - loss)
    return ()


def _laid_out(layout: str, pipeline: int) -> tuple[int, ...]:
    """ "Et*3|(tt|)*6mL": stages between bars, t a layer; stages go to the ranks in turns."""
    text = re.sub(r"\((.*?)\)\*(\d+)", lambda found: found[1] * int(found[2]), layout)
    text = re.sub(r"([^()|])\*(\d+)", lambda found: found[1] * int(found[2]), text)
    stages = text.split("|")
    counts = [0] * pipeline
    for index, stage in enumerate(stages):
        counts[index % pipeline] += stage.count("t")
    return tuple(counts)


def _model(given: dict[str, str], heads: int, hidden: int, layers: int) -> dict[str, Any]:
    biased = given.get("disable-bias-linear") != "true"
    model: dict[str, Any] = {
        "model_type": "megatron",
        "gated": given.get("swiglu") == "true" or given.get("quick-geglu") == "true",
        "rotary": given.get("position-embedding-type", "learned_absolute") != "learned_absolute",
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
        "norm_bias": given.get("normalization") != "RMSNorm",
        "tied_embeddings": given.get("untie-embeddings-and-output-weights") != "true",
        "max_position_embeddings": int(given.get("max-position-embeddings", 1024)),
        "vocabulary_size": int(given.get("padded-vocab-size") or given.get("vocab-size") or GPT2_VOCABULARY),
        "head_norms": given.get("qk-layernorm") == "true",
        "prediction_layers": int(given.get("mtp-num-layers", 0)),
    }
    if "ffn-hidden-size" in given:
        model["intermediate_size"] = int(given["ffn-hidden-size"])
    elif model["gated"]:
        model["intermediate_size"] = int(4 * hidden * 2 / 3) // 64 * 64
    else:
        model["intermediate_size"] = 4 * hidden
    if "num-query-groups" in given:
        model["key_value_heads"] = int(given["num-query-groups"])
    if "kv-channels" in given:
        model["head_dim"] = int(given["kv-channels"])
    if "num-experts" in given:
        model["experts"] = _experts(given, model, layers)
    if given.get("multi-latent-attention") == "true":
        model["latent"] = LatentAttention(
            query_rank=int(given.get("q-lora-rank", 0)),
            key_value_rank=int(given.get("kv-lora-rank", 32)),
            rotary_dim=int(given.get("qk-pos-emb-head-dim", 64)),
            nope_dim=int(given.get("qk-head-dim", 128)),
            value_dim=int(given.get("v-head-dim", 128)),
        )
    pattern = given.get("hybrid-override-pattern") or given.get("hybrid-layer-pattern")
    if pattern:
        main = pattern.split("/")[0]
        model["hybrid"] = Hybrid(
            attention_layers=main.count("*"),
            feed_forward_layers=main.count("-") + main.count("E"),
            state_layers=main.count("M"),
            state_heads=int(given.get("mamba-num-heads", 2 * hidden // 64)),
            state_head_dim=int(given.get("mamba-head-dim", 64)),
            state_size=int(given.get("mamba-state-dim", 128)),
            groups=int(given.get("mamba-num-groups", 8)),
        )
    return model


def _experts(given: dict[str, str], model: dict[str, Any], layers: int) -> Experts:
    pattern = given.get("moe-layer-freq", "1")
    leading = re.match(r"\(\[0\]\*(\d+)", pattern)
    return Experts(
        count=int(given["num-experts"]),
        per_token=int(given.get("moe-router-topk", 2)),
        intermediate_size=int(given.get("moe-ffn-hidden-size", model["intermediate_size"])),
        shared_intermediate_size=int(given.get("moe-shared-expert-intermediate-size", 0)),
        shared_gate=given.get("moe-shared-expert-gate") == "true",
        leading_dense_layers=int(leading[1]) if leading else 0,
        every=int(pattern) if pattern.isdigit() else 1,
        bias=model["feed_forward_bias"] and given.get("moe-grouped-gemm") != "true",
        latent_size=int(given.get("moe-latent-size", 0)),
    )


def _from_name(name: str) -> dict[str, str]:
    """Arguments that the names of tests state, by the project's own habit."""
    plain = name.lower()
    given = {"transformer-impl": "transformer_engine" if "_te_" in plain else "local"}
    if experts := re.search(r"(\d+)experts", plain):
        given["num-experts"] = experts[1]
        given["moe-router-topk"] = "2" if "top2" in plain else "1"
    for word, argument in (
        ("swiglu", "swiglu"),
        ("untie", "untie-embeddings-and-output-weights"),
        ("disable_bias_linear", "disable-bias-linear"),
        ("cross_entropy_loss_fusion", "cross-entropy-loss-fusion"),
        ("groupedgemm", "moe-grouped-gemm"),
        ("mla", "multi-latent-attention"),
        ("qk_layernorm", "qk-layernorm"),
    ):
        if word in plain:
            given[argument] = "true"
    if "rope" in plain:
        given["position-embedding-type"] = "rope"
    if etp := re.search(r"etp(\d+)", plain):
        given["expert-tensor-parallel-size"] = etp[1]
    if re.search(r"_cp\d", plain):
        given |= {"hidden-dropout": "0.0", "attention-dropout": "0.0"}
    if "_te_" in plain:
        given["attention-backend"] = "unfused"
    return given
