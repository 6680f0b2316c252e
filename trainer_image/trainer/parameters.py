"""One parameter of this rank, seen from both sides: how the whole one is cut, and where autograd finds its
part.

The two are the same tensor, with two exceptions. Under tensor parallelism alone the modules compute on plain local
tensors, because a DTensor in every call costs more than a small layer, and `cut` is a view of them that knows the
whole. In half precision without sharding the modules compute on a copy: `cut` is the master in full precision, which
is trained and saved, `live` is renewed from it, and gradients are added up in full precision beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True)
class Parameter:
    name: str  # transformers' name
    cut: (
        torch.Tensor
    )  # a DTensor, or a plain tensor where nothing is cut; shares storage with `live`, or is its master
    live: nn.Parameter  # the module's; gradients are left here
    mirror: nn.Parameter | None = (
        None  # a second one of the same weight on this rank, with a gradient of its own
    )
    sums: tuple[dist.ProcessGroup, ...] = ()  # groups of whose ranks each has a part of the gradient
    stages: int = 1  # pipeline ranks that hold it: two for an embedding that is tied to the head of another
    wide: tuple[WideGradient, ...] = ()  # where half-precision gradients are added up; only with a master

    def take_gradient(self) -> torch.Tensor | None:
        """The local gradient since it was last taken; None when no backward pass has reached the parameter."""
        found = [wide.take() for wide in self.wide]
        if not self.wide:
            for live in self._lives():
                found.append(None if live.grad is None else local(live.grad))
                live.grad = None
        there = [gradient for gradient in found if gradient is not None]
        return None if not there else there[0] if len(there) == 1 else there[0] + there[1]

    def refresh(self) -> None:
        """The weights were changed: renew the copies that the modules compute with."""
        with torch.no_grad():
            if self.wide:
                local(self.live).copy_(local(self.cut))
            if self.mirror is not None:
                local(self.mirror).copy_(local(self.cut))

    def with_master(self, dtype: torch.dtype) -> Parameter:
        """The same parameter with a master in `dtype`, not yet filled in."""
        master = cut_like(self.cut, torch.empty_like(local(self.cut), dtype=dtype))
        return replace(self, cut=master, wide=tuple(WideGradient(live, dtype) for live in self._lives()))

    def _lives(self) -> list[nn.Parameter]:
        return [self.live] if self.mirror is None else [self.live, self.mirror]


class WideGradient:
    """Adds up what autograd leaves on `live`, in the precision of the master, and frees it at once."""

    def __init__(self, live: nn.Parameter, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._live = live
        self._sum: torch.Tensor | None = None
        live.register_post_accumulate_grad_hook(self._add)

    def take(self) -> torch.Tensor | None:
        if self._live.grad is not None:  # left by a backward pass that runs no hooks
            self._add(self._live)
        total, self._sum = self._sum, None
        return total

    def _add(self, live: torch.Tensor) -> None:
        gradient, live.grad = live.grad, None
        if gradient is None:
            return
        if self._sum is None:
            self._sum = gradient.to(self._dtype)
        else:
            self._sum.add_(gradient)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of a tensor, sharing its storage."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def cut_like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part`, of this rank, as a part of a whole that is cut like `parameter`; shares its storage."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def gathered(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The whole of which each rank has a `part`, cut like `parameter`. Collective where it is cut."""
    cut = cut_like(parameter, part)
    return cut.full_tensor() if isinstance(cut, DTensor) else cut


def own_part(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of `whole`, cut like `parameter`. No communication."""
    if not isinstance(parameter, DTensor):
        return whole
    return local(distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None))


def as_they_are(module: nn.Module) -> list[Parameter]:
    return [Parameter(name, parameter.detach(), parameter) for name, parameter in module.named_parameters()]


def made_local(module: nn.Module) -> list[Parameter]:
    """Replace each DTensor parameter of `module` by its local part. Tied parameters must be tied again."""
    parameters = []
    for name, parameter in list(module.named_parameters()):
        live = parameter
        if isinstance(parameter, DTensor):
            live = nn.Parameter(parameter.detach().to_local())
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner).register_parameter(attribute, live)
        parameters.append(Parameter(name, parameter.detach(), live))
    return parameters
