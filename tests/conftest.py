"""Fixtures and helpers for all tests."""

import keras
import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(0)
