"""The run's tokenizer: a byte-level BPE trained on its own documents, or one that a file gives.

It is written as a folder that `AutoTokenizer.from_pretrained` loads without a network. The same documents and
the same size give the same tokenizer. Called by `prepare`; imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.data.errors import DataError
from trainer.data.sources import file_path

FIELD = "spec.model.tokenizer"
END_TOKEN = "<|endoftext|>"
KNOWN_END_TOKENS = (END_TOKEN, "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
SMALLEST_VOCABULARY = 257  # every byte, and the end of a document
# Merges hardly change after this much text, while the time to find them grows with it.
TRAINING_CHARACTERS = 16_000_000


@dataclass(frozen=True)
class TokenizerDefinition:
    """What the spec asks for. Exactly one of the two is set: a folder to load, or a size to train."""

    folder: Path | None
    vocabulary_size: int

    def identity(self) -> str:
        """Text that differs when the tokenizer would."""
        if self.folder is None:
            return f"byte-level-bpe:{self.vocabulary_size}:{TRAINING_CHARACTERS}"
        parts = [path for path in (self.folder / name for name in _FOLDER_FILES) if path.is_file()]
        return "files:" + ":".join(f"{p.name}={hashlib.sha256(p.read_bytes()).hexdigest()}" for p in parts)


_FOLDER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def definition(spec: dict[str, Any]) -> TokenizerDefinition:
    """What `spec.model.tokenizer` asks for. Raises DataError."""
    tokenizer = spec["model"].get("tokenizer") or {}
    uri = tokenizer.get("uri")
    if uri:
        path = file_path(uri, f"{FIELD}.uri")
        folder = path.parent if path.name == "tokenizer.json" else path
        if not (folder / "tokenizer.json").is_file():
            fix = "name a folder that holds tokenizer.json, or that file"
            raise DataError(f"{FIELD}.uri", uri, f"there is no file {folder / 'tokenizer.json'}", fix)
        return TokenizerDefinition(folder, 0)
    size = (tokenizer.get("train") or {}).get("vocabularySize")
    if size is None:
        fix = "set tokenizer.train.vocabularySize or tokenizer.uri"
        raise DataError(FIELD, tokenizer, "neither a tokenizer to load nor one to train", fix)
    if size < SMALLEST_VOCABULARY:
        problem = f"256 bytes and the end of a document need {SMALLEST_VOCABULARY} tokens"
        fix = f"use at least {SMALLEST_VOCABULARY}"
        raise DataError(f"{FIELD}.train.vocabularySize", size, problem, fix)
    return TokenizerDefinition(None, size)


def train(vocabulary_size: int, texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of at most `vocabulary_size` tokens; fewer when the texts hold too few pairs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_capped(texts), trainer)
    return tokenizer


def _capped(texts: Iterable[str]) -> Iterator[str]:
    left = TRAINING_CHARACTERS
    for text in texts:
        if left <= 0:
            return
        yield text[:left]
        left -= len(text)


def make(wanted: TokenizerDefinition, texts: Iterable[str], folder: Path) -> tuple[Tokenizer, int, int]:
    """Write the tokenizer into `folder`; (tokenizer, id of the end token, rows that an embedding needs)."""
    folder.mkdir(parents=True)
    if wanted.folder is None:
        tokenizer = train(wanted.vocabulary_size, texts)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_TOKEN,
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        return tokenizer, tokenizer.token_to_id(END_TOKEN), wanted.vocabulary_size
    for name in _FOLDER_FILES:
        if (wanted.folder / name).is_file():
            shutil.copyfile(wanted.folder / name, folder / name)
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception for a bad file
        fix = "use a tokenizer.json of the tokenizers library"
        raise DataError(
            f"{FIELD}.uri", str(wanted.folder), f"tokenizer.json cannot be read: {error}", fix
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end = _end_token(tokenizer, folder)
    if end is None:
        fix = "name eos_token in tokenizer_config.json"
        raise DataError(f"{FIELD}.uri", str(wanted.folder), "no token ends a document", fix)
    if not (folder / "tokenizer_config.json").is_file():
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer.id_to_token(end)}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    # Some files have it as a token like others, which would be found in texts.
    tokenizer.add_special_tokens([tokenizer.id_to_token(end)])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return tokenizer, end, max(vocabulary.values()) + 1


def _end_token(tokenizer: Tokenizer, folder: Path) -> int | None:
    config = folder / "tokenizer_config.json"
    named = json.loads(config.read_text()).get("eos_token") if config.is_file() else None
    if isinstance(named, dict):
        named = named.get("content")
    candidates = [named] if named else KNOWN_END_TOKENS
    found = (tokenizer.token_to_id(token) for token in candidates)
    return next((token for token in found if token is not None), None)


def encode(tokenizer: Tokenizer, texts: list[str], end_token: int) -> list[list[int]]:
    """Token ids of each text. Text that looks like a special token is text, and becomes its ordinary tokens.

    Raises DataError when the tokenizer makes its end token of a text all the same: the document would end there.
    """
    tokenizer.encode_special_tokens = True
    found = [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    for text, ids in zip(texts, found, strict=True):
        if end_token in ids:
            token = tokenizer.id_to_token(end_token)
            problem = f"it makes its end token of the text of a document, which begins {text[:60]!r}"
            fix = (
                "take that out of the text, or use a tokenizer that has its end token as an added token only"
            )
            raise DataError(FIELD, token, problem, fix)
    return found
