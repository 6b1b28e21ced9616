"""Logits, weights and images of real networks, where they are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest


def find(name):
    """Returns the path of a file in the folder of real data, or skips the test."""
    default = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("KERAS_SELCAL_DATA", default)) / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand: set KERAS_SELCAL_DATA to its folder")
    return path


def load(name):
    """Returns the arrays of an .npz file, or skips the test."""
    with np.load(find(name)) as data:
        return {key: data[key] for key in data.files}


def load_logits(name):
    """Returns the arrays of a file of logits, or skips the test."""
    return load(f"logits/{name}")
