"""Bytes of tensors that are alive on the CPU, counted at each operation that makes one: the CPU has no counters of its
own, and what is resident says more of the allocator than of the tensors.

A storage counts from the operation whose result it is until nothing holds it any more, with the size that it then has
(FSDP2 empties gathered weights, and fills them again). What an operation needs inside of itself alone is not seen.
Whoever knows what a storage is for gives it a part; all others are the rest.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REST = "rest"


class LiveBytes(TorchDispatchMode):
    """`look` is asked before each count, for storages whose part has become known."""

    def __init__(self, look: Callable[[], Iterable[tuple[str, torch.Tensor]]] = lambda: ()) -> None:
        super().__init__()
        self.look = look
        self.now: Counter[str] = Counter()
        self.peak: dict[str, int] = {}  # of the parts, when all of them together were the most
        self.most_rest = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, str] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> LiveBytes:
        tracker, resize = self, self._resize

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            tracker._resized(storage)
            return found

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        self._count()
        return found

    def begin(self) -> None:
        """Peaks are those from now on."""
        self.peak, self.most_rest = {}, 0

    def belongs(self, part: str, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._belongs(part, tensor)

    def part(self, name: str) -> int:
        return self.now[name]

    def _belongs(self, part: str, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        if storage is None:
            return
        key = storage._cdata
        if key not in self._known:
            self._track(storage)
        before = self._parts[key]
        if before != part:
            self.now[before] -= self._sizes[key]
            self.now[part] += self._sizes[key]
            self._parts[key] = part

    def _add(self, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in self._known:
            self._track(storage)

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        self._known[key] = weakref.ref(storage, lambda _: self._gone(key))
        self._sizes[key], self._parts[key] = storage.nbytes(), REST
        self.now[REST] += self._sizes[key]

    def _gone(self, key: int) -> None:
        self._known.pop(key)
        self.now[self._parts.pop(key)] -= self._sizes.pop(key)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            self.now[self._parts[key]] += storage.nbytes() - self._sizes[key]
            self._sizes[key] = storage.nbytes()
            self._count()

    def _count(self) -> None:
        for part, tensor in self.look():
            self._belongs(part, tensor)
        self.most_rest = max(self.most_rest, self.now[REST])
        if self.now.total() > sum(self.peak.values()):
            self.peak = dict(self.now)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    own = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if own.device.type != "cpu" or type(own) not in (torch.Tensor, torch.nn.Parameter):
        return None
    return own.untyped_storage()
