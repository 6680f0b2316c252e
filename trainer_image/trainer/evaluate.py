"""Loss of an exported model on held-out text, beside what counting tokens would reach on the same tokens.

    python -m trainer.evaluate --model URI --spec FILE --cache DIR [--tokens N]

Plain transformers and none of the training code, so it also proves the export. Prints one JSON line on stdout, and
what it is at on stderr, each line after `TALK`. All values are nats a token, over the same targets. The entropies
are those of the held-out tokens' own counts, so they flatter a bigram table that could not have known them:
`bigram_cross_entropy` is what one learned on the training tokens reaches.

A large held-out text is sampled: the number of rows is bounded by `TOKEN_LIMIT`, and for a large model by
`WORK_LIMIT`; they are spread evenly over the text, so the same rows are measured each time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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

TALK = "evaluate: "
TOKEN_LIMIT = 262_144
WORK_LIMIT = 2_000_000_000_000  # tokens x parameters: minutes of one slow core, however large the model is
BIGRAM_TRAINING_LIMIT = 20_000_000
_LOGITS = 2**25  # at a time, unless one row has more: 128 MiB of them
_PART = 1024  # positions whose loss is computed at a time, in float64
_SAY_SECONDS = 10.0
_PRIOR = 5.0  # weight of the unigram estimate within the bigram's


Say = Callable[[str], None]


def evaluate(
    model_dir: Path, spec: dict[str, Any], data: PreparedData, say: Say, limit: int | None = None
) -> dict[str, Any]:
    """The numbers of the module's description. `limit`: tokens, in place of both limits. Raises DataError when
    nothing is held out.
    """
    if data.heldout is None:
        raise DataError("spec.data.validation", [], "no held-out text", "name a validation source")
    store, length = data.heldout, int(spec["training"]["sequenceLength"])
    model = AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True)
    wanted = min(TOKEN_LIMIT, WORK_LIMIT // model.num_parameters()) if limit is None else limit
    rows = spread(store.sequences(length), max(1, wanted // length))
    measured = min(len(rows) * length, store.tokens)
    say(f"measuring held-out loss on {measured:,} of {store.tokens:,} tokens")
    started = time.perf_counter()
    loss, targets = mean_loss(model, store, rows, length, say)
    seconds = time.perf_counter() - started
    say("counting the pairs of tokens that were trained on")
    before, after = pairs(store, ((row * length, (row + 1) * length) for row in rows))
    unigram, bigram = entropies(before, after, data.vocabulary_size)
    learned = training_pairs(data)
    return {
        "heldout_loss": loss,
        "tokens": targets,
        "unigram_entropy": unigram,
        "bigram_entropy": bigram,
        "bigram_cross_entropy": bigram_cross_entropy(learned, (before, after), data.vocabulary_size),
        "measured_tokens": measured,
        "heldout_tokens": store.tokens,
        "seconds": round(seconds, 3),
    }


def spread(total: int, wanted: int) -> Sequence[int]:
    """`wanted` of `total` rows, evenly from the first to the last; all of them when there are no more."""
    return range(total) if wanted >= total else [number * total // wanted for number in range(wanted)]


@torch.inference_mode()
def mean_loss(
    model: PreTrainedModel, store: TokenStore, rows: Sequence[int], length: int, say: Say
) -> tuple[float, int]:
    """(nats a target, targets) over these rows; documents attend to themselves only."""
    model.eval()
    total, targets, said = 0.0, 0, time.perf_counter()
    together = max(1, _LOGITS // (length * model.config.get_text_config().vocab_size))
    for first in range(0, len(rows), together):
        some = rows[first : first + together]
        batch = block(store, some, len(some), length)
        # Positions that start again keep documents apart; a mask as well would join them.
        logits = model(
            input_ids=torch.from_numpy(batch.input_ids),
            position_ids=torch.from_numpy(batch.position_ids),
            use_cache=False,
        ).logits
        labels = torch.from_numpy(batch.labels)
        for part, wanted in zip(
            logits.flatten(0, 1).split(_PART), labels.flatten().split(_PART), strict=True
        ):
            total += torch.nn.functional.cross_entropy(
                part.double(), wanted, ignore_index=IGNORED, reduction="sum"
            ).item()
        targets += int((labels != IGNORED).sum())
        if time.perf_counter() - said >= _SAY_SECONDS:
            said = time.perf_counter()
            say(f"held-out loss: {min(first + together, len(rows)):,} of {len(rows):,} rows measured")
    return total / max(1, targets), targets


def pairs(store: TokenStore, stretches: Iterable[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """(token, next token) of the same document, the first within these stretches: the targets of the loss."""
    spans = [span for start, end in stretches for span in store.spans(start, end)]
    read = [store.read(span.start, span.end + int(span.goes_on)) for span in spans]
    return np.concatenate([one[:-1] for one in read]), np.concatenate([one[1:] for one in read])


def training_pairs(data: PreparedData) -> tuple[np.ndarray, np.ndarray]:
    """Of all sources, each in proportion to its size."""
    whole = sum(store.tokens for store in data.stores)
    shares = [max(1, BIGRAM_TRAINING_LIMIT * store.tokens // whole) for store in data.stores]
    found = [pairs(store, [(0, share)]) for store, share in zip(data.stores, shares, strict=True)]
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
    parser.add_argument("--tokens", type=int, help=f"measure about so many, in place of {TOKEN_LIMIT:,}")
    options = parser.parse_args(arguments)
    try:
        spec = json.loads(options.spec.read_text())
        data = prepared(spec, options.cache)
        result = evaluate(local_path(options.model), spec, data, _say, options.tokens)
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


def _say(text: str) -> None:
    print(TALK + text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
