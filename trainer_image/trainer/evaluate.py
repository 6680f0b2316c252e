"""Loss of an exported model on held-out text, beside what counting tokens would reach on the same tokens.

    python -m trainer.evaluate --model URI --spec FILE --cache DIR

Plain transformers and none of the training code, so it also proves the export. Prints one JSON line; all
values are nats a token, over the same targets. The entropies are those of the held-out tokens' own counts, so
they flatter a bigram table that could not have known them: `bigram_cross_entropy` is what one learned on the
training tokens reaches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.data.blocks import IGNORED, block
from trainer.data.errors import DataError
from trainer.data.prepare import PreparedData, prepared
from trainer.data.store import TokenStore
from trainer.errors import TrainerError
from trainer.uris import NotAPath, local_path
from trainingrun.protocol.exit_codes import ExitCode

TOKEN_LIMIT = 262_144  # of the held-out text, from its start: some ten seconds of one slow core
BIGRAM_TRAINING_LIMIT = 20_000_000
_ROWS = 16
_PRIOR = 5.0  # weight of the unigram estimate within the bigram's


def evaluate(model_dir: Path, spec: dict[str, Any], data: PreparedData) -> dict[str, Any]:
    """The numbers of the module's description. Raises DataError when nothing is held out."""
    if data.heldout is None:
        raise DataError("spec.data.validation", [], "no held-out text", "name a validation source")
    length = int(spec["training"]["sequenceLength"])
    samples = min(data.heldout.sequences(length), max(1, TOKEN_LIMIT // length))
    model = AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True)
    started = time.perf_counter()
    loss, targets = mean_loss(model, data.heldout, samples, length)
    seconds = time.perf_counter() - started
    before, after = pairs(data.heldout, samples * length + 1)
    unigram, bigram = entropies(before, after, data.vocabulary_size)
    learned = training_pairs(data)
    return {
        "heldout_loss": loss,
        "tokens": targets,
        "unigram_entropy": unigram,
        "bigram_entropy": bigram,
        "bigram_cross_entropy": bigram_cross_entropy(learned, (before, after), data.vocabulary_size),
        "heldout_tokens": data.heldout.tokens,
        "token_limit": TOKEN_LIMIT,
        "seconds": round(seconds, 3),
    }


@torch.inference_mode()
def mean_loss(model: PreTrainedModel, store: TokenStore, samples: int, length: int) -> tuple[float, int]:
    """(nats a target, targets) over the first `samples` rows; documents attend to themselves only."""
    model.eval()
    total, targets = 0.0, 0
    for first in range(0, samples, _ROWS):
        rows = list(range(first, min(first + _ROWS, samples)))
        batch = block(store, rows, len(rows), length)
        # Positions that start again keep documents apart; a mask as well would join them.
        logits = model(
            input_ids=torch.from_numpy(batch.input_ids),
            position_ids=torch.from_numpy(batch.position_ids),
            use_cache=False,
        ).logits
        labels = torch.from_numpy(batch.labels)
        total += torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).double(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        ).item()
        targets += int((labels != IGNORED).sum())
    return total / max(1, targets), targets


def pairs(store: TokenStore, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """(token, next token) of the same document, among the first `limit` tokens: the targets of the loss."""
    read = [store.read(span.start, span.end) for span in store.spans(0, limit)]
    return np.concatenate([one[:-1] for one in read]), np.concatenate([one[1:] for one in read])


def training_pairs(data: PreparedData) -> tuple[np.ndarray, np.ndarray]:
    """Of all sources, each in proportion to its size."""
    whole = sum(store.tokens for store in data.stores)
    found = [pairs(store, max(1, BIGRAM_TRAINING_LIMIT * store.tokens // whole)) for store in data.stores]
    return np.concatenate([before for before, _ in found]), np.concatenate([after for _, after in found])


def entropies(before: np.ndarray, after: np.ndarray, vocabulary: int) -> tuple[float, float]:
    """Entropy of `after`, and of `after` given `before`, by their own counts."""
    single = _entropy(np.unique(after, return_counts=True)[1])
    joint = _entropy(np.unique(before * vocabulary + after, return_counts=True)[1])
    return single, joint - _entropy(np.unique(before, return_counts=True)[1])


def _entropy(counts: np.ndarray) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def bigram_cross_entropy(
    learned: tuple[np.ndarray, np.ndarray], asked: tuple[np.ndarray, np.ndarray], vocabulary: int
) -> float:
    """Loss on `asked` of p(b|a) = (count(a, b) + k p(b)) / (count(a) + k), p(b) with one added to each
    count.
    """
    before, after = learned
    single = (np.bincount(after, minlength=vocabulary) + 1.0) / (len(after) + vocabulary)
    context = np.bincount(before, minlength=vocabulary)
    keys, counts = np.unique(before * vocabulary + after, return_counts=True)
    wanted = asked[0] * vocabulary + asked[1]
    place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
    seen = np.where(keys[place] == wanted, counts[place], 0) if len(keys) else np.zeros(len(wanted))
    chance = (seen + _PRIOR * single[asked[1]]) / (context[asked[0]] + _PRIOR)
    return float(-np.log(chance).mean())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="URI of the exported model")
    parser.add_argument("--spec", type=Path, required=True, help="resolved spec, JSON")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the prepared data")
    options = parser.parse_args(arguments)
    try:
        spec = json.loads(options.spec.read_text())
        result = evaluate(local_path(options.model), spec, prepared(spec, options.cache))
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except NotAPath as error:
        print(f"error: --model {options.model}: {error}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIGURATION)
    except (OSError, json.JSONDecodeError) as error:
        print(f"error: --model, --spec or --cache cannot be read: {error}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIGURATION)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
