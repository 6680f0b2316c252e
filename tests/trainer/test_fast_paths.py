"""What replaces torch's or transformers' own computation gives the same numbers and gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from trainer.attention import attention_mask
from trainer.losses import IGNORED, token_loss_sum
from trainer.norms import RMSNorm
from trainer.short_attention import attend
from trainingrun.protocol.attention import LONGEST_KEPT

DOCUMENTS = {"one": [0] * 24, "three": [0] * 5 + [1] * 12 + [2] * 7}


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_short_attention_is_that_of_torch(documents: str, key_heads: int) -> None:
    mask = attention_mask(torch.tensor([DOCUMENTS[documents]] * 3), None)
    assert (mask is None) == (documents == "one")
    shapes = (4, key_heads, key_heads)
    inputs = [
        torch.randn(3, 24, heads, 8, dtype=torch.float64).transpose(1, 2).requires_grad_() for heads in shapes
    ]
    upstream = torch.randn(3, 24, 4, 8, dtype=torch.float64)
    query, key, value = inputs
    whole = [part.repeat_interleave(4 // key_heads, dim=1) for part in (key, value)]
    expected = F.scaled_dot_product_attention(
        query, *whole, attn_mask=mask, is_causal=mask is None, scale=0.3
    )
    attended, _ = attend(SimpleNamespace(), query, key, value, mask, scaling=0.3)
    assert attended.is_contiguous()
    torch.testing.assert_close(attended, expected.transpose(1, 2), rtol=0, atol=1e-13)
    found = torch.autograd.grad(attended, inputs, upstream)
    torch.testing.assert_close(
        found, torch.autograd.grad(expected, inputs, upstream.transpose(1, 2)), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("length", [LONGEST_KEPT, LONGEST_KEPT + 1])
def test_only_short_attention_keeps_the_weights_of_its_pairs(length: int) -> None:
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    inputs = [torch.randn(1, 2, length, 4, requires_grad=True) for _ in range(3)]
    module = SimpleNamespace(num_key_value_groups=1, is_causal=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attend(module, *inputs, None)
    assert (2 * length * length in kept) == (length == LONGEST_KEPT)


@pytest.mark.parametrize("centred", [False, True])
def test_a_norm_is_that_of_transformers(centred: bool) -> None:
    theirs = GemmaRMSNorm(16, 1e-6) if centred else LlamaRMSNorm(16, 1e-6)
    ours = RMSNorm(16, 1e-6, centred=centred)
    with torch.no_grad():
        ours.weight.copy_(theirs.weight.normal_())
    inputs = torch.randn(3, 5, 16, requires_grad=True)
    upstream = torch.randn(3, 5, 16)
    outputs = [norm(inputs) for norm in (ours, theirs)]
    torch.testing.assert_close(outputs[0], outputs[1])
    gradients = [
        torch.autograd.grad(output, [inputs, norm.weight], upstream)
        for output, norm in zip(outputs, (ours, theirs), strict=True)
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_loss_takes_the_memory_of_consumed_logits_and_is_the_same() -> None:
    given = torch.randn(2, 7, 50, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(50, (2, 7))
    labels[0, :3] = IGNORED
    expected = F.cross_entropy(given.flatten(0, 1), labels.flatten(), reduction="sum")
    logits = given * 1.0
    places = []
    logits.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    loss = token_loss_sum(logits, labels, consume=True)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    found = torch.autograd.grad(0.25 * loss, given)
    torch.testing.assert_close(found, torch.autograd.grad(0.25 * expected, given), rtol=0, atol=1e-15)
    assert places == [logits.data_ptr()]
