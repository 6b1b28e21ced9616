"""Fixtures and helpers for all tests.

Keras is imported by fixtures only: what hands tests to workers does not need it.
"""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

# `recipes` is in no wheel. Last, so that the installed keras_selcal is the one tested.
sys.path.append(str(Path(__file__).parent.parent))
# Collecting garbage took up to a tenth of the time.
gc.set_threshold(100_000, 50, 100)
# No test opens a window.
os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture(autouse=True, scope="session")
def _prepare():
    import backends

    backends.compile_fast()
    # No test collects again what the packages hold.
    gc.freeze()


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
    import keras

    keras.utils.set_random_seed(0)
