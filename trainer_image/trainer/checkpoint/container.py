"""What `torch.save` puts around the bytes of a tensor, without those bytes.

A stored tensor is a container that `torch.load` and `torch.distributed.checkpoint` read, but its elements are hashed,
written and read as they are, straight from and to memory. The container depends on type and shape alone. Called by the
writer.
"""

from __future__ import annotations

import functools
import io
import math
import os

import torch

ALIGNMENT = 64  # bytes: of the elements within a container, and so of containers within a file


@functools.lru_cache(maxsize=1024)
def around(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What stands before the elements, and what after them."""
    stream = _Hollow()
    untouched = torch.UntypedStorage(math.prod(shape) * dtype.itemsize)
    with torch.serialization.skip_data():
        torch.save(torch.empty(0, dtype=dtype).set_(untouched, 0, shape), stream)
    return stream.getvalue()[: stream.hole], stream.getvalue()[stream.hole :]


def elements_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of the elements in row-major order: the tensor's own memory where it is so already."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


class _Hollow(io.BytesIO):
    """Takes what is written, and notes where a step over bytes was made instead. Without one the hole is at the end."""

    hole: int | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_CUR or self.hole is not None:
            raise io.UnsupportedOperation("torch.save is expected to skip the elements once")
        self.hole = self.tell()
        return self.hole + offset
