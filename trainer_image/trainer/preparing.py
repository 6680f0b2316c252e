"""What a node makes ready before its ranks start: the data, and a look at the weights that they begin with.

Called by the agent's data process, as its data module: `prepare` and `prepared` are those of the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config.source import read_source
from trainer.data.prepare import PreparedData, Say
from trainer.data.prepare import prepare as prepare_data


def prepare(spec: dict[str, Any], cache_dir: Path, say: Say) -> PreparedData:
    """Raises ConfigError and DataError where the run can never work."""
    if source := read_source(spec["model"]):
        from trainer.architecture import model_config  # with torch, which the data alone does not need
        from trainer.weights import check_source
        from trainer.weights_folder import WeightsFolder

        say("looking at the weights")
        given = spec["model"]["config"]
        check_source(WeightsFolder(source.folder, source.uri), model_config(given, given["vocab_size"]))
    return prepare_data(spec, cache_dir, say)
