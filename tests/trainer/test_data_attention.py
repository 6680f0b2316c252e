"""Packed documents are trained as if each stood alone: the same loss over the same targets, and nothing leaks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.trainer.texts import a_store
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.data.blocks import IGNORED, Block
from trainer.data.mixture import Stage
from trainer.data.packing import PACKINGS
from trainer.data.row_plan import make_rows
from trainer.data.samples import Sample, Samples
from trainer.data.store import TokenStore

VOCABULARY = 97
LENGTHS = [3, 5, 9, 2, 7, 16, 4, 4]
LONGEST = max(LENGTHS)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).double().eval()


def packed(store: TokenStore, length: int, packing: str, folder: Path) -> Block:
    rows = make_rows(store, length, packing, folder)
    samples = Samples([rows], names=[""], stages=[Stage(0, (1,))], seed=0, sequence_length=length)
    return samples.block([Sample(0, number) for number in range(rows.count)], rows.count)


@torch.inference_mode()
def summed_loss(model: LlamaForCausalLM, block: Block) -> tuple[float, int]:
    labels = torch.from_numpy(block.labels)
    logits = logits_of(model, block)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return loss.item(), int((labels != IGNORED).sum())


@torch.inference_mode()
def logits_of(model: LlamaForCausalLM, block: Block) -> torch.Tensor:
    """Attention inside of equal documents only, as the mask of the trainer's stages says it."""
    documents = torch.from_numpy(block.document_ids)
    same = (documents[:, :, None] == documents[:, None, :]).tril().unsqueeze(1)
    mask = torch.zeros(same.shape, dtype=torch.float64).masked_fill(~same, float("-inf"))
    return model(
        input_ids=torch.from_numpy(block.input_ids),
        position_ids=torch.from_numpy(block.position_ids),
        attention_mask=mask,
        use_cache=False,
    ).logits


@torch.inference_mode()
def loss_of_separate_documents(model: LlamaForCausalLM, store: TokenStore) -> float:
    total = 0.0
    for start, end in pairwise(store.starts.tolist()):
        ids = torch.from_numpy(store.read(start, end)).unsqueeze(0)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        total += torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
    return total


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("length", [LONGEST, 24, sum(LENGTHS)])
def test_the_loss_is_that_of_the_documents_by_themselves(
    model: LlamaForCausalLM, packing: str, length: int, tmp_path: Path
) -> None:
    store = a_store(tmp_path / "s", LENGTHS, vocabulary=VOCABULARY)
    loss, targets = summed_loss(model, packed(store, length, packing, tmp_path))
    assert targets == sum(LENGTHS) - len(LENGTHS)
    if packing != "Concatenate" or length == sum(LENGTHS):  # else documents are cut where rows end
        assert loss == pytest.approx(loss_of_separate_documents(model, store), abs=1e-9)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_token_of_one_document_changes_no_logit_of_another(
    model: LlamaForCausalLM, packing: str, tmp_path: Path
) -> None:
    block = packed(a_store(tmp_path / "s", LENGTHS, vocabulary=VOCABULARY), 24, packing, tmp_path)
    before = logits_of(model, block)
    for document in range(len(LENGTHS)):
        ids = block.input_ids.copy()
        mine = block.document_ids == document
        ids[mine] = (ids[mine] + 11) % VOCABULARY
        after = logits_of(model, Block(ids, block.labels, block.document_ids, block.position_ids))
        changed = torch.from_numpy(mine)
        assert torch.equal(after[~changed], before[~changed])
        assert not torch.equal(after[changed], before[changed])
