"""Refinement: the loss after the best temperature."""

import numpy as np
import pytest
import reference
from real_data import load_logits
from scipy.optimize import minimize_scalar

from keras_selcal import functional as F  # noqa: N812

pytestmark = pytest.mark.backend_free


def scaled_loss(logits, y, loss, log_temperature):
    log_p = reference.log_softmax(logits / np.exp(log_temperature))
    if loss == "brier":
        labels = np.eye(logits.shape[-1])[y]
        return ((np.exp(log_p) - labels) ** 2).sum(axis=-1).mean()
    return -log_p[np.arange(len(y)), y].mean()


def make_data(rng, n=300, k=4):
    y = rng.integers(0, k, n)
    return 6 * np.eye(k)[y] + 4 * rng.normal(size=(n, k)), y


@pytest.mark.parametrize("loss", ["crossentropy", "brier"])
def test_refinement_is_the_least_loss_of_any_temperature(rng, loss):
    logits, y = make_data(rng)
    expected = minimize_scalar(
        lambda t: scaled_loss(logits, y, loss, t), bounds=(-3, 3), method="bounded"
    ).fun
    found = F.refinement(y, logits, loss=loss, from_logits=True)
    assert found == pytest.approx(expected, abs=1e-7)
    p = reference.softmax(logits)
    assert F.refinement(y, p, loss=loss) == pytest.approx(expected, abs=1e-6)
    one_hot = np.eye(4)[y]
    found = F.refinement(one_hot, logits, loss=loss, from_logits=True)
    assert found == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("loss", ["crossentropy", "brier"])
def test_a_temperature_does_not_change_refinement(rng, loss):
    logits, y = make_data(rng)
    values = [
        F.refinement(y, scale * logits, loss=loss, from_logits=True)
        for scale in (0.2, 1.0, 3.0)
    ]
    assert np.ptp(values) < 1e-6


def test_labels_of_several_have_their_own_temperatures(rng):
    y = rng.integers(0, 2, (200, 2))
    logits = (2 * y - 1 + rng.normal(size=(200, 2))) * [5.0, 0.2]
    apart = [F.refinement(y[:, c], logits[:, c], from_logits=True) for c in (0, 1)]
    found = F.refinement(y, logits, from_logits=True, multi_label=True)
    assert found == pytest.approx(np.mean(apart))


def test_nan_predictions_and_unknown_losses():
    assert np.isnan(F.refinement([0, 1], [[np.nan, 0.5], [0.5, 0.5]]))
    with pytest.raises(ValueError, match="`loss` must be one of 'crossentropy'"):
        F.refinement([0], [[0.5, 0.5]], loss="zero_one")


def test_refinement_of_a_real_network():
    data = load_logits("markus93_resnet110_c10_logits.npz")
    y, logits = data["test_labels"].ravel(), data["test_logits"]
    found = F.refinement(y, logits, from_logits=True)
    # Published after temperature scaling on other data: 0.2093.
    assert found == pytest.approx(0.2089, abs=1e-4)
