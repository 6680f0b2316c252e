"""Measurements of this project, each a module of its own: `python -m benchmarks.NAME`, from the checkout's folder.

Where the project is not installed, its packages are taken from the checkout.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("trainingrun") is None:
    _CHECKOUT = Path(__file__).parents[1]
    sys.path += [str(_CHECKOUT / "operator"), str(_CHECKOUT / "trainer_image")]
