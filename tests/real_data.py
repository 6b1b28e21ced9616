"""Logits of real networks, where they are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest


def load_logits(name):
    """Returns the arrays of a file of logits, or skips the test."""
    default = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("KERAS_SELCAL_DATA", default)) / "logits" / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand: set KERAS_SELCAL_DATA to its folder")
    with np.load(path) as data:
        return {key: data[key] for key in data.files}
