"""What calibrators say of fits that take long and of outputs of another kind."""

import numpy as np
import pytest

from keras_selcal import DirichletCalibration, TemperatureScaling
from keras_selcal.calibrators import dirichlet


def draw():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    z = (2 * np.eye(3)[y] + rng.normal(size=(200, 3))).astype("float32")
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    return z, p, y


def test_dirichlet_warns_of_a_fit_that_takes_minutes(monkeypatch):
    z, _, y = draw()
    DirichletCalibration().fit(z, y)  # a warning would be an error
    monkeypatch.setattr(dirichlet, "_MOST_PRODUCTS", 200 * 9 - 1)
    with pytest.warns(UserWarning, match="many minutes.*StructuredVectorScaling"):
        DirichletCalibration().fit(z, y)


def test_a_calibrator_of_probabilities_gives_nan_for_logits():
    z, p, y = draw()
    calibrator = TemperatureScaling(from_logits=False).fit(p, y)
    assert np.isfinite(calibrator.predict_proba(p)).all()
    assert np.isnan(calibrator.predict_proba(z)).all()
