"""How each model family's modules are called and cut: the one table by which stages, cuts and initial weights go.

The modules are transformers' own. A family that differs in more than names gets a field here, not a code path of
its own. Without torch; the shapes that planner and API need are in `trainingrun.protocol.families`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Names of modules: those of the root within the model, the others within one layer."""

    root: str = "model"  # holds everything but the head
    embedding: str = "embed_tokens"
    positions: str = ""  # learned positions; "": rotary
    embedding_dropout: str = ""
    layers: str = "layers"
    norm: str = "norm"  # the last one
    attention: str = "self_attn"
    attention_input: str | None = "hidden_states"  # its keyword; None: the first positional one
    feed_forward: str = "mlp"
    column: tuple[str, ...] = (  # each tensor rank computes some of the outputs
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    )
    row: tuple[str, ...] = ("self_attn.o_proj", "mlp.down_proj")  # each sees some of the inputs
    fused: tuple[str, ...] = ()  # of `column`: queries, keys and values in one matrix
    partial: tuple[str, ...] = ()  # parameters that are whole on each tensor rank and work on cut heads
    divided: tuple[str, ...] = ()  # numbers that count cut columns
    centred_norms: bool = False  # norms scale by 1 + weight, so that weights start at 0
    scaled_residuals: tuple[str, ...] = ()  # matrices that start smaller by sqrt(2 x layers)

    @property
    def embedding_weight(self) -> str:
        """Name of the embedding, under which a tied head is known too."""
        return f"{self.root}.{self.embedding}.weight"


LLAMA = Family()

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "qwen3": Family(partial=("self_attn.q_norm.weight", "self_attn.k_norm.weight")),
    "mistral": LLAMA,
    "gemma": Family(centred_norms=True),
    "gpt2": Family(
        root="transformer",
        embedding="wte",
        positions="wpe",
        embedding_dropout="drop",
        layers="h",
        norm="ln_f",
        attention="attn",
        attention_input=None,
        column=("attn.c_attn", "mlp.c_fc"),
        row=("attn.c_proj", "mlp.c_proj"),
        fused=("attn.c_attn",),
        divided=("attn.split_size",),
        scaled_residuals=("attn.c_proj.weight", "mlp.c_proj.weight"),
    ),
}

HEAD_WEIGHT = "lm_head.weight"
_NORM = re.compile(r"(norm|\bln_[12f])\.weight$")


def is_norm(name: str) -> bool:
    """Whether the parameter of this transformers name scales a norm, in any family."""
    return _NORM.search(name) is not None


def stored_shape(model_type: str, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape under which the state keeps the parameter `name` that transformers has as `shape`.

    They differ where three matrices are fused in one: these get a dim of their own, so that a cut is one box. The
    order of the numbers is the same, so `view` leads from one to the other.
    """
    fused = FAMILIES[model_type].fused
    if any(f".{one}." in name for one in fused):
        return (*shape[:-1], 3, shape[-1] // 3)
    return shape
