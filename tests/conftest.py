"""Fixtures and helpers for all tests."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

# `recipes` is in no wheel. Last, so that the installed keras_selcal is the one tested.
sys.path.append(str(Path(__file__).parent.parent))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(0)
