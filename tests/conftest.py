"""Fixtures and helpers for all tests."""

import gc
import os
import sys
from pathlib import Path

import backends
import keras
import numpy as np
import pytest

# `recipes` is in no wheel. Last, so that the installed keras_selcal is the one tested.
sys.path.append(str(Path(__file__).parent.parent))
# No test collects again what the packages hold, which took up to a tenth of the time.
gc.freeze()
gc.set_threshold(100_000, 50, 100)
backends.share_context()
# No test opens a window.
os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def ax():
    """An Axes that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure().subplots()


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(0)
