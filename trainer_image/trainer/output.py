"""The folder of the exported model: ours to replace only if an export of ours is what stands there.

No torch: the agent asks before any training, the exporter again before it writes.
"""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError
from trainer.uris import uri_of

SOURCE_FILE = "source.json"  # written into every export: which checkpoint it came from


def check_replaceable(folder: Path) -> None:
    """Raises ConfigError when something that is no export stands at `folder`: it would be lost."""
    if not folder.exists():
        return
    if folder.is_dir() and ((folder / SOURCE_FILE).exists() or not any(folder.iterdir())):
        return
    raise ConfigError(
        "spec.output.uri",
        uri_of(folder),
        "something that is not an exported model is there, and exporting would replace it",
        "name another folder, or move away what is there",
    )
