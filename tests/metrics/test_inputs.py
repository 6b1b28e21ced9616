"""What metrics refuse, and what they do with masked classes and empty batches."""

import keras
import numpy as np
import pytest
from sigmoid_data import EXACT, KINDS, STREAMING, data, same, streamed

from keras_selcal import FocalLoss
from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

THREE = np.full((2, 3), 1 / 3)
PAIRS = np.array([[0.9, 0.8], [0.2, 0.1]])
BAD = {
    "label out of range": ([0, 3], THREE, None, "y_true=3"),
    "label 255": ([255, 1], THREE, None, "ignore_class"),
    "label -1": ([-1, 1], [0.5, 0.5], None, "y_true=-1"),
    "fraction": ([1.7, 1.0], THREE, None, "y_true=1.7"),
    "NaN label": ([np.nan, 1.0], THREE, None, "y_true=nan"),
    "multi-hot": (np.eye(3)[[0, 1]] + np.eye(3)[2], THREE, None, "multi_label=True"),
    "logits": ([0, 1], [[4.0, -2.0], [0.0, 1.0]], None, "from_logits=True"),
    "sigmoid logits": ([0, 1], [4.0, -2.0], None, "from_logits=True"),
    "several sigmoids": ([0, 1], PAIRS, None, "multi_label=True"),
    "negative weight": ([0, 1], [0.4, 0.6], [1.0, -1.0], "sample_weight=-1.0"),
    "NaN weight": ([0, 1], [0.4, 0.6], [1.0, np.nan], "sample_weight=nan"),
}


def bad_input(bad):
    y, p, w, words = BAD[bad]
    y, p = np.asarray(y), np.asarray(p, "float32")
    return y, p, None if w is None else np.asarray(w, "float32"), words


@pytest.mark.parametrize("bad", BAD)
def test_bad_arrays_are_refused_by_every_metric(bad):
    y, p, w, words = bad_input(bad)
    for name, function in EXACT.items():
        if name == "ece_positive" and p.shape[-1] == 3:
            continue
        with pytest.raises(ValueError, match=words):
            function(y, p, sample_weight=w)
        if name in STREAMING:
            with pytest.raises(ValueError, match=words):
                STREAMING[name]().update_state(y, p, w)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", KINDS)
def test_bad_tensors_give_nan(name, bad):
    y, p, w, _ = bad_input(bad)
    metric = STREAMING[name]()
    arguments = [y, p] if w is None else [y, p, w]
    metric.update_state(*map(keras.ops.convert_to_tensor, arguments))
    assert np.isnan(keras.ops.convert_to_numpy(metric.result()))


def test_multi_label_refuses_class_indices():
    for name, function in EXACT.items():
        with pytest.raises(ValueError, match="multi-hot"):
            function(np.array([0, 1]), PAIRS, multi_label=True)
        if name in STREAMING:
            with pytest.raises(ValueError, match="multi-hot"):
                STREAMING[name](multi_label=True).update_state([0, 1], PAIRS)


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_batch_changes_nothing(name):
    y, _, p = (x[:, 0] for x in data())
    metric = STREAMING[name]()
    metric.update_state(y[:0], p[:0])
    metric.update_state(y, p)
    metric.update_state(y[:0], p[:0])
    same(float(metric.result()), EXACT[name](y, p), 2e-6)
    with pytest.raises(ValueError, match="at least one sample"):
        EXACT[name](y[:0], p[:0])


def masked_logits():
    rng = np.random.default_rng(6)
    z = rng.normal(size=(30, 4)).astype("float32")
    y = rng.integers(0, 3, 30)
    z[:, 3] = -np.inf
    z[::2, 2] = np.where(y[::2] == 2, z[::2, 2], -np.inf)
    return y, z, np.where(np.isinf(z), np.float32(-1e4), z)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", [name for name in EXACT if name != "ece_positive"])
@pytest.mark.parametrize("csf", ["msp", "margin", "neg_entropy"])
def test_masked_classes_equal_very_low_logits(name, csf):
    y, z, finite = masked_logits()
    options = {"from_logits": True}
    if "au" in name or "risk" in name:
        if name == "aurc_entropy":
            return
        options["csf"] = csf
    same(EXACT[name](y, z, **options), EXACT[name](y, finite, **options), 1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_masked_classes_equal_very_low_logits_when_streaming(name):
    y, z, finite = masked_logits()
    expected = EXACT[name](y, finite, from_logits=True)
    same(streamed(name, y, z, from_logits=True), expected, 1e-4)


def test_labels_of_two_ranks_on_one_compiled_model():
    k = 4
    rng = np.random.default_rng(7)
    z = rng.normal(size=(k, k)).astype("float32")
    y = rng.integers(0, k, k)
    model = keras.Sequential(
        [keras.Input((k,)), keras.layers.Dense(k, kernel_initializer="identity")]
    )
    metrics = [M.BrierScore(from_logits=True), M.AURC(from_logits=True)]
    model.compile(loss=FocalLoss(2, from_logits=True), metrics=metrics)
    expected = F.brier(y, z, from_logits=True)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    log_p = log_p[np.arange(k), y]
    focal = np.mean(-((1 - np.exp(log_p)) ** 2) * log_p)
    one_hot = np.eye(k, dtype="float32")[y]
    for labels in (y, y[:, None], one_hot, y.astype("float32"), y[:, None], one_hot):
        got = model.test_on_batch(z, labels, return_dict=True)
        assert got["loss"] == pytest.approx(focal, rel=1e-5), labels.shape
        assert got["brier"] == pytest.approx(expected, rel=1e-5), labels.shape
        assert got["aurc"] == pytest.approx(F.aurc(y, z, from_logits=True), rel=1e-4)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("row", "allowed"),
    [
        ([1.0005, 0.0, 0.0], True),
        ([1.0005, -0.0005, 0.0], True),
        ([0.5, 0.509, 0.0], True),
        ([1.01, 0.0, 0.0], False),
        ([1.01, -0.0005, 0.0], False),
        ([0.5, 0.505, -0.005], False),
        ([0.5, 0.511, 0.0], False),
    ],
)
@pytest.mark.parametrize("beside", [[0.2, 0.3, 0.5], [np.nan, 0.5, 0.5]])
def test_probabilities_and_their_sums_may_be_off_by_rounding(row, allowed, beside):
    p, y = np.array([beside, row, beside], "float32"), np.zeros(3, int)
    if allowed:
        F.ece(y, p)
        return
    with pytest.raises(ValueError, match=r"y_pred.*sum to 1 in each row"):
        F.ece(y, p)


@pytest.mark.backend_free
@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
def test_the_order_of_an_array_in_memory_changes_nothing(binning):
    rng = np.random.default_rng(0)
    # Multiples of 1/15, so that many probabilities lie on the edges of bins.
    counts = rng.multinomial(15, [0.5, 0.2, 0.2, 0.1], 40)
    p, y = counts / 15, rng.integers(0, 4, 40)
    one_hot, weight = np.eye(4)[y], rng.random(40)
    for labels in (y, one_hot):
        for w in (None, weight):
            expected, found = (
                F.cwece(labels, x, binning=binning, sample_weight=w)
                for x in (p, np.asfortranarray(p))
            )
            np.testing.assert_allclose(found, expected, rtol=1e-12)
