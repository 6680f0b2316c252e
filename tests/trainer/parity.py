"""A plain training loop with transformers and torch only, and the same data and weights for it and for ours.

The plain loop trains one document at a time, unpacked: it needs no mask, no micro-batches and no ranks, and
has none of the trainer's code. Ours gets the same documents packed into rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 512
SEQUENCE = 32
IGNORED = -100


class Batch(NamedTuple):
    input_ids: torch.Tensor
    labels: torch.Tensor
    document_ids: torch.Tensor
    position_ids: torch.Tensor


class Recipe(NamedTuple):
    """What both loops train, and how."""

    model: dict[str, Any]  # transformers config
    weights: dict[str, torch.Tensor]  # initial, by transformers name
    steps: int
    global_batch: int  # sequences
    learning_rates: list[float]
    weight_decay: float = 0.1
    max_grad_norm: float | None = 1.0
    dtype: torch.dtype = torch.float64
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    float64_norms: bool = True  # transformers' own compute in float32 at any precision


class Outcome(NamedTuple):
    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def tiny_model(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config as `spec.model.config` has it."""
    model = {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "vocab_size": VOCABULARY,
        **FAMILY_CHANGES[model_type],
        **changes,
    }
    return {key: value for key, value in model.items() if value is not None}


FAMILY_CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 6},
    "gemma": {"head_dim": 16},
    "gpt2": {"num_key_value_heads": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
"""What makes a family what it is, at this size: a window that documents outgrow, no dropout."""


class CentredNorm(torch.nn.Module):
    """Gemma's, in the precision of its input."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt() * (1 + self.weight)


def plain_model(given: dict[str, Any], *, float64_norms: bool) -> torch.nn.Module:
    """As transformers makes it, but for norms that do not round to float32."""
    values = dict(given)
    if values["model_type"] == "gpt2":
        values["n_inner"] = values.pop("intermediate_size")
    config = AutoConfig.for_model(**{"pad_token_id": None, **values}, use_cache=False)
    model = AutoModelForCausalLM.from_config(config)
    for name, module in list(model.named_modules()) if float64_norms else []:
        if type(module).__name__.endswith("RMSNorm"):
            size, centred = module.weight.shape[0], values["model_type"] == "gemma"
            norm = (
                CentredNorm(size, config.rms_norm_eps)
                if centred
                else torch.nn.RMSNorm(size, config.rms_norm_eps)
            )
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, norm)
    return model.train()


def documents_of_row(step: int, row: int) -> list[torch.Tensor]:
    """Ragged documents, together at most SEQUENCE long, in which the next token mostly follows from the
    last.
    """
    generator = torch.Generator().manual_seed(1000 * step + row)
    documents, left = [], SEQUENCE - int(torch.randint(0, 4, (), generator=generator))
    while left >= 2:
        length = min(left, int(torch.randint(2, SEQUENCE, (), generator=generator)))
        tokens = [int(torch.randint(0, 40, (), generator=generator))]
        while len(tokens) < length:
            noisy = float(torch.rand((), generator=generator)) < 0.1
            tokens.append(
                int(torch.randint(0, 40, (), generator=generator)) if noisy else (tokens[-1] * 7 + 3) % 40
            )
        documents.append(torch.tensor(tokens))
        left -= length
    return documents


def packed(rows: list[list[torch.Tensor]]) -> Batch:
    """Rows of documents as one micro-batch; what is left of a row, and a row without documents, weighs
    nothing.
    """
    shape = (len(rows), SEQUENCE)
    batch = Batch(
        torch.zeros(shape, dtype=torch.int64),
        torch.full(shape, IGNORED),
        torch.full(shape, -1),
        torch.zeros(shape, dtype=torch.int64),
    )
    for r, documents in enumerate(rows):
        at = 0
        for number, tokens in enumerate(documents):
            end = at + len(tokens)
            batch.input_ids[r, at:end] = tokens
            batch.labels[r, at : end - 1] = tokens[1:]
            batch.document_ids[r, at:end] = number
            batch.position_ids[r, at:end] = torch.arange(len(tokens))
            at = end
    return batch


def share(
    step: int, *, global_batch: int, data_rank: int, data_degree: int, micro_batch: int, accumulation: int
) -> list[Batch]:
    """This data rank's micro-batches of a step; sequences beyond the global batch are padding."""
    batches = []
    for index in range(accumulation):
        first = (index * data_degree + data_rank) * micro_batch
        rows = range(first, first + micro_batch)
        batches.append(packed([documents_of_row(step, r) if r < global_batch else [] for r in rows]))
    return batches


def plain_training(recipe: Recipe) -> Outcome:
    model = plain_model(recipe.model, float64_norms=recipe.float64_norms)
    model.to(recipe.dtype)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    given = {name: weight.to(recipe.dtype).view(shapes[name]) for name, weight in recipe.weights.items()}
    missing = model.load_state_dict(given, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=recipe.betas,
        eps=recipe.epsilon,
    )
    losses, norms = [], []
    for step in range(1, recipe.steps + 1):
        documents = [d for row in range(recipe.global_batch) for d in documents_of_row(step, row)]
        targets = sum(len(document) - 1 for document in documents)
        total = 0.0
        optimizer.zero_grad()
        for document in documents:
            logits = model(input_ids=document.unsqueeze(0)).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, document[1:], reduction="sum") / targets
            loss.backward()
            total += loss.item()
        limit = float("inf") if recipe.max_grad_norm is None else recipe.max_grad_norm
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rates[step - 1]
        optimizer.step()
        losses.append(total)
    return Outcome(losses, norms, {name: p.detach().clone() for name, p in model.named_parameters()})
