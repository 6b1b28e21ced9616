"""Figures that others have published, on the logits of real networks."""

import itertools

import keras
import numpy as np
import pytest
from backends import numpy
from real_data import load_logits

from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

RESNET110 = "markus93_resnet110_c10_logits.npz"
RESNET50 = "mukhoti_cifar100_resnet50_logits.npz"
DENSENET40 = "markus93__probs_densenet40_c100_logits.npz"


def compiled_update(metric):
    """Returns a function that updates a metric, compiled where the backend does."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        step = jax.jit(metric.stateless_update_state)

        def update(y, p):
            state = step([variable.value for variable in metric.variables], y, p)
            for variable, value in zip(metric.variables, state, strict=True):
                variable.assign(value)

        return update
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(metric.update_state, reduce_retracing=True)
    return metric.update_state


def streamed(metric, y, p, size):
    update = compiled_update(metric)
    for start in range(0, len(y), size):
        update(y[start : start + size], p[start : start + size])
    return float(numpy(metric.result()))


def test_exact_figures():
    data = load_logits(RESNET110)
    y, z = data["test_labels"], data["test_logits"]
    given = {"from_logits": True}
    assert 100 * F.ece(y, z, **given) == pytest.approx(4.7503, abs=1e-4)
    assert round(F.nll(y, z, **given), 6) == 0.358274
    assert round(10 * F.cwece(y, z, **given), 5) == 0.09829
    cooler = z / 2.395
    assert round(100 * F.ece(y, cooler, **given), 4) == 1.1321
    assert round(F.nll(y, cooler, **given), 6) == 0.209261
    assert round(10 * F.cwece(y, cooler, **given), 5) == 0.04343
    assert 100 * F.risk_at_coverage(y, z, 1.0, **given) == pytest.approx(6.44)

    data = load_logits(RESNET50)
    y, z = data["test_labels"], data["test_logits"]
    assert round(100 * F.ece(y, z, **given), 2) == 6.52
    assert round(100 * F.ece(y, z / 1.1, **given), 2) == 3.64
    assert 100 * F.risk_at_coverage(y, z, 1.0, **given) == pytest.approx(23.39)

    data = load_logits(DENSENET40)
    right = data["true_label"] == data["pred_label"]
    assert right.mean() == pytest.approx(0.7)
    assert round(100 * F.calibration_error(data["confidence"], right), 4) == 21.1563


@pytest.mark.parametrize("size", [7, 1000])
def test_streamed_figures(size):
    data = load_logits(RESNET110)
    y, z = data["test_labels"].astype("int32"), data["test_logits"]
    ece = streamed(M.ExpectedCalibrationError(from_logits=True), y, z, size)
    assert 100 * ece == pytest.approx(4.7503, abs=1e-4)
    if size > 7:
        metric = M.ClasswiseCalibrationError(num_classes=10, from_logits=True)
        assert round(10 * streamed(metric, y, z, size), 5) == 0.09829


def test_streams_of_single_samples():
    data = load_logits(RESNET110)
    y, z = data["test_labels"][:1000].astype("int32"), data["test_logits"][:1000]
    ece = streamed(M.ExpectedCalibrationError(from_logits=True), y, z, 1)
    assert ece == pytest.approx(F.ece(y, z, from_logits=True), abs=1e-6)


def test_streamed_top_labels():
    data = load_logits(DENSENET40)
    c, top = data["confidence"], data["pred_label"].astype("int32")
    # What is left is spread over the other classes: the top label stays on top.
    p = np.repeat(((1 - c) / 99)[:, None], 100, axis=1)
    p[np.arange(len(c)), top] = c
    y = data["true_label"].astype("int32")
    ece = streamed(M.ExpectedCalibrationError(), y, p, 1000)
    assert round(100 * ece, 4) == 21.1563


@pytest.mark.parametrize(
    ("name", "csf"),
    [*itertools.product([RESNET110, RESNET50], ["msp", "margin", "neg_entropy"])],
)
def test_histograms_err_little(name, csf):
    data = load_logits(name)
    y, z = data["test_labels"].astype("int32"), data["test_logits"]
    ranked = {"csf": csf, "from_logits": True}
    pairs = [
        (M.AURC(**ranked), F.aurc(y, z, **ranked)),
        (M.ExcessAURC(**ranked), F.excess_aurc(y, z, **ranked)),
        (M.AUGRC(**ranked), F.augrc(y, z, **ranked)),
        (M.FailureAUROC(**ranked), F.failure_auroc(y, z, **ranked)),
    ]
    c, r = 0.5, 0.05
    pairs += [
        (M.RiskAtCoverage(c, **ranked), F.risk_at_coverage(y, z, c, **ranked)),
        (M.CoverageAtRisk(r, **ranked), F.coverage_at_risk(y, z, r, **ranked)),
    ]
    if csf == "msp":
        for norm in ("l1", "l2"):
            given = {"binning": "adaptive", "norm": norm, "from_logits": True}
            pairs.append((M.ExpectedCalibrationError(**given), F.ece(y, z, **given)))
            pairs.append((M.ClasswiseCalibrationError(**given), F.cwece(y, z, **given)))
    for metric, expected in pairs:
        metric.update_state(y, z)
        got = float(numpy(metric.result()))
        most = 2e-3 if metric.name == "coverage_at_risk" else 1.1e-4
        assert got == pytest.approx(expected, abs=most), metric.name


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_adaptive_bins_of_a_crowded_histogram(norm):
    """5000 samples of 100 classes: a cell at a cut holds several."""
    data = load_logits(RESNET50)
    y, z = data["val_labels"].astype("int32"), data["val_logits"]
    given = {"binning": "adaptive", "norm": norm, "from_logits": True}
    metric = M.ExpectedCalibrationError(**given)
    metric.update_state(y, z)
    most = 2e-3 if norm == "max" else 1e-4
    assert float(numpy(metric.result())) == pytest.approx(
        F.ece(y, z, **given), abs=most
    )
