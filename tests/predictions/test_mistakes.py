"""Predictions that are plausible numbers, but not what they are taken for."""

import numpy as np
import pytest
from reference import softmax

from keras_selcal import CalibrationReport
from keras_selcal import functional as F  # noqa: N812
from keras_selcal.calibrators import (
    HistogramBinning,
    PriorCorrection,
    TemperatureScaling,
)
from keras_selcal.conformal import conformal_scores

pytestmark = pytest.mark.backend_free


def predictions(k, n=200, scale=4.0, seed=0):
    """Returns labels and the logits of a trained network."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, k))
    return (z + rng.gumbel(size=z.shape)).argmax(-1), z


@pytest.mark.parametrize("k", [2, 3, 10, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probabilities_are_not_logits(k, dtype):
    y, z = predictions(k)
    p = softmax(z).astype(dtype)
    for call in (
        lambda: F.ece(y, p, from_logits=True),
        lambda: CalibrationReport(y, p, from_logits=True),
        lambda: TemperatureScaling().fit(p, y),
        lambda: TemperatureScaling().fit(z, y)(p),
        lambda: conformal_scores(p, y, from_logits=True),
    ):
        with pytest.raises(ValueError, match="from_logits=False"):
            call()


@pytest.mark.parametrize("k", [2, 3, 10, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_second_softmax_is_noticed(k, dtype):
    y, z = predictions(k, scale=10.0)
    p = softmax(softmax(z)).astype(dtype)
    for call in (
        lambda: F.ece(y, p),
        lambda: CalibrationReport(y, p, bootstrap=0),
        lambda: TemperatureScaling(from_logits=False).fit(p, y),
    ):
        with pytest.warns(UserWarning, match="two softmax or sigmoid"):
            call()


@pytest.mark.parametrize("shape", ["unit", "multi_label"])
def test_a_second_sigmoid_is_noticed(shape):
    rng = np.random.default_rng(0)
    z = 10 * rng.normal(size=(200, 3))
    y = (z + rng.logistic(size=z.shape) > 0).astype("int32")
    q = 1 / (1 + np.exp(-1 / (1 + np.exp(-z))))
    given = (y[:, 0], q[:, 0]) if shape == "unit" else (y, q)
    with pytest.warns(UserWarning, match="two softmax or sigmoid"):
        F.brier(*given, multi_label=shape == "multi_label")


@pytest.mark.parametrize("k", [2, 3, 10, 100])
@pytest.mark.parametrize("scale", [0.01, 0.1, 0.2, 0.35, 0.5, 1.0])
def test_flat_predictions_are_not_taken_for_it(k, scale):
    """Warnings are errors."""
    for seed in range(20):
        y, z = predictions(k, scale=scale, seed=seed)
        F.brier(y, softmax(z))
        F.brier(y, softmax(z / np.ptp(z)))
    F.brier(y, np.full_like(z, 1 / k))


def test_swapped_arguments_are_noticed():
    y, z = predictions(5)
    p, one_hot = softmax(z), np.eye(5)[y]
    events, units = (z[:, :3] > 0).astype("float64"), 1 / (1 + np.exp(-z[:, :3]))
    for labels, predicted, options in (
        (one_hot, p, {}),
        (events, units, {"multi_label": True}),
        (events[:, 0], units[:, 0], {}),
    ):
        for from_logits in (False, True):
            with pytest.warns(UserWarning, match="swapped"):
                F.brier(predicted, labels, from_logits=from_logits, **options)
        F.brier(labels, predicted, **options)
    with pytest.warns(UserWarning, match="`logits` holds only 0 and 1, and `labels`"):
        TemperatureScaling(from_logits=False).fit(one_hot, p)
    # Hard predictions for hard labels, and soft ones for soft labels.
    F.brier(one_hot, np.eye(5)[z.argmax(-1)])
    F.brier(0.9 * one_hot + 0.02, p)


@pytest.mark.parametrize("off", [0.009, 0.011])
def test_rows_sum_to_one_within_a_percent(off):
    y, z = predictions(4)
    p = (1 - off) * softmax(z)
    calls = [
        lambda: F.brier(y, p),
        lambda: F.brier(p, softmax(z)),
        lambda: HistogramBinning(from_logits=False).fit(p, y),
    ]
    for call in calls:
        if off < 0.01:
            call()
        else:
            with pytest.raises(ValueError, match="sum to 1"):
                call()


@pytest.mark.parametrize("k", [2, 3, 7, 10, 15, 20, 49, 1000])
def test_equal_logits_lie_on_an_edge_as_equal_probabilities_do(k):
    y = np.arange(50) % k
    for dtype in ("float32", "float64"):
        z, p = np.full((50, k), 3, dtype), np.full((50, k), 1 / k, dtype)
        for function in (F.cwece, F.ece):
            expected = function(y, p, k)
            assert function(y, z, k, from_logits=True) == pytest.approx(
                expected, abs=1e-7
            )


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_empty_predictions_are_called_empty(shape):
    for function in (F.ece, F.cwece, F.brier, F.nll, F.aurc, F.smooth_ece, F.au):
        with pytest.raises(ValueError, match="an empty array of shape"):
            function(np.zeros(shape[0], "int32"), np.zeros(shape))


def test_errors_show_the_start_of_a_large_value():
    with pytest.raises(ValueError, match=r"Received: source=.*…$") as error:
        PriorCorrection(source=np.full((100, 10), 1 / 3).tolist())
    assert len(str(error.value)) < 700
