"""Reading the files of a checkpoint: what is damage, and what is a place that does not answer for a while.

Called by whatever reads durable checkpoints. No torch.
"""

from __future__ import annotations

import errno

from trainer.checkpoint.errors import CheckpointDamaged
from trainer.checkpoint.store import Store
from trainingrun.protocol.checkpoints import Item

_BAD_MEDIUM = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


def read_exactly(store: Store, checkpoint: str, item: Item, start: int, buffer: memoryview) -> None:
    """Fill `buffer` from the item's file. Raises CheckpointDamaged; OSError where the place does not answer."""
    try:
        got = store.read_into(f"{checkpoint}/{item.file}", start, buffer)
    except FileNotFoundError as error:
        raise damaged_in(store, checkpoint, item, "the file is gone") from error
    except OSError as error:
        if error.errno not in _BAD_MEDIUM:
            raise
        raise damaged_in(store, checkpoint, item, f"cannot be read: {error.strerror}") from error
    if got != len(buffer):
        raise damaged_in(store, checkpoint, item, "the file ends within it")


def damaged_in(store: Store, checkpoint: str, item: Item, problem: str) -> CheckpointDamaged:
    return CheckpointDamaged(checkpoint, store.where(f"{checkpoint}/{item.file}"), item.name, problem)
