"""What holds for every exact metric, and the arguments that are refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops
from metric_data import data

from keras_selcal import functional as F  # noqa: N812

# Everything that gives one number from labels and predictions.
METRICS = {
    "ece": F.ece,
    "ece_l2": lambda *a, **k: F.ece(*a, norm="l2", **k),
    "ece_max": lambda *a, **k: F.ece(*a, norm="max", **k),
    "ece_adaptive": lambda *a, **k: F.ece(*a, binning="adaptive", num_bins=4, **k),
    "cwece": F.cwece,
    "cwece_adaptive": lambda *a, **k: F.cwece(*a, binning="adaptive", num_bins=4, **k),
    "smooth_ece": F.smooth_ece,
    "brier": F.brier,
    "brier_calibration": lambda *a, **k: F.brier_decomposition(*a, **k).calibration,
    "nll": F.nll,
    "aurc": F.aurc,
    "aurc_brier": lambda *a, **k: F.aurc(*a, loss="brier", **k),
    "excess_aurc": F.excess_aurc,
    "augrc": F.augrc,
    "failure_auroc": F.failure_auroc,
    "risk_at_coverage": lambda *a, **k: F.risk_at_coverage(*a, 0.6, **k),
    "coverage_at_risk": lambda *a, **k: F.coverage_at_risk(*a, 0.4, **k),
}


class TestEveryMetric:
    @pytest.mark.backend_free
    @pytest.mark.parametrize("name", METRICS)
    def test_properties(self, name):
        metric = METRICS[name]

        examples = 3 if name == "smooth_ece" else 25

        @settings(max_examples=examples, deadline=None, derandomize=True)
        @given(
            counts=hnp.arrays(
                "int64",
                st.tuples(st.integers(1, 12), st.just(3)),
                elements=st.integers(0, 4),
            ),
            seed=st.integers(0, 1000),
        )
        def check(counts, seed):
            rng = np.random.default_rng(seed)
            p = (counts + 1) / (counts + 1).sum(-1, keepdims=True)
            n = len(p)
            y = rng.integers(0, 3, n)
            value = metric(y, p)
            same = pytest.approx(value, abs=1e-9, nan_ok=True)
            order = rng.permutation(n)
            assert metric(y[order], p[order]) == same
            assert metric(np.tile(y, 2), np.tile(p, (2, 1))) == pytest.approx(
                metric(y, p, sample_weight=np.full(n, 2)), abs=1e-9, nan_ok=True
            )
            w = rng.integers(0, 3, n)
            w[0] = 1
            repeated = metric(np.repeat(y, w), np.repeat(p, w, 0))
            weighted = metric(y, p, sample_weight=w)
            assert weighted == pytest.approx(repeated, abs=1e-9, nan_ok=True)
            assert metric(np.eye(3)[y], p) == same
            if not name.startswith("brier") and name != "nll":
                most = 2 if name == "aurc_brier" else 1
                assert math.isnan(value) or 0 <= value <= most + 1e-9

        check()

    @pytest.mark.backend_free
    @pytest.mark.parametrize("name", METRICS)
    def test_what_cannot_be_told_is_nan(self, name):
        y, p = data(20, 3)
        p[7, 1] = np.nan
        assert math.isnan(METRICS[name](y, p))
        w = np.ones(20)
        w[7] = 0
        rest = np.delete(np.arange(20), 7)
        expected = METRICS[name](y[rest], p[rest])
        assert METRICS[name](y, p, sample_weight=w) == pytest.approx(expected)
        assert math.isnan(METRICS[name](y, p, from_logits=True))

    @pytest.mark.parametrize("name", METRICS)
    def test_forms_of_input(self, name):
        y, p = data(24, 3, dtype="float32")
        metric = METRICS[name]
        value = metric(y, p)
        same = pytest.approx(value, rel=1e-4, abs=1e-5)
        assert metric(y[:, None], p) == same
        assert metric(y.reshape(4, 6), p.reshape(4, 6, 3)) == same
        assert metric(ops.convert_to_tensor(y), ops.convert_to_tensor(p)) == same
        assert metric(y, np.log(p), from_logits=True) == same
        assert metric(y, np.log(p) + 7, from_logits=True) == same
        few_bits = np.round(p * 256) / 256
        half = ops.cast(ops.convert_to_tensor(few_bits), "bfloat16")
        assert metric(y, half) == pytest.approx(metric(y, few_bits))
        rows = np.repeat([1, 0, 2, 1], 6)
        by_row = metric(y.reshape(4, 6), p.reshape(4, 6, 3), sample_weight=[1, 0, 2, 1])
        assert by_row == pytest.approx(metric(y, p, sample_weight=rows))

    @pytest.mark.backend_free
    @pytest.mark.parametrize("name", METRICS)
    def test_labels_that_do_not_fit_one_unit(self, name):
        with pytest.raises(ValueError, match=r"one sigmoid.*y_pred.shape=\(3, 1\)"):
            METRICS[name](np.zeros((3, 2)), np.full((3, 1), 0.5))

    @pytest.mark.backend_free
    @pytest.mark.parametrize("name", METRICS)
    def test_perfect_predictions(self, name):
        y = np.arange(10) % 3
        value = METRICS[name](y, np.eye(3)[y])
        if name == "failure_auroc":
            assert math.isnan(value)
        elif name == "coverage_at_risk":
            assert value == 1.0
        else:
            assert abs(value) < 1e-4

    @pytest.mark.backend_free
    @pytest.mark.parametrize("name", METRICS)
    def test_certain_and_wrong(self, name):
        y = np.arange(10) % 3
        value = METRICS[name]((y + 1) % 3, np.eye(3)[y])
        expected = {
            "nll": math.inf,
            "brier": 2.0,
            "brier_calibration": 2.0,
            "aurc_brier": 2.0,
            "excess_aurc": 0.0,
            "augrc": 0.5,
            "coverage_at_risk": 0.0,
        }
        if name == "failure_auroc":
            assert math.isnan(value)
        elif name.startswith("cwece"):
            assert 0 < value <= 1
        elif name == "brier_calibration":
            assert 0 < value <= 2
        else:
            assert value == pytest.approx(expected.get(name, 1.0))


@pytest.mark.backend_free
def test_normalised_weights_mean_their_ratios():
    y, p = data(40, 3)
    for name in ("aurc", "ece_adaptive", "cwece_adaptive", "excess_aurc"):
        expected = METRICS[name](y, p)
        scaled = METRICS[name](y, p, sample_weight=np.full(40, 1 / 40))
        assert scaled == pytest.approx(expected)


@pytest.mark.backend_free
def test_perfect_ranking_has_no_excess():
    p = np.stack([np.linspace(0.9, 0.6, 20), 1 - np.linspace(0.9, 0.6, 20)], -1)
    y = (np.arange(20) >= 13) * 1
    assert F.excess_aurc(y, p) == pytest.approx(0.0, abs=1e-12)
    assert F.failure_auroc(y, p) == 1.0
    assert F.excess_aurc(y[::-1], p) > 0.1


def test_a_score_of_ones_own():
    def second(p):
        return -ops.max(ops.where(p < ops.max(p, axis=-1, keepdims=True), p, 0.0), -1)

    second.support = (-0.5, 0.0)
    y, p = data(50, 4, dtype="float32")
    score = -np.sort(p, axis=-1)[:, -2]
    loss = (p.argmax(-1) != y)[np.argsort(-score, kind="stable")]
    expected = (np.cumsum(loss) / np.arange(1, 51)).mean()
    assert F.aurc(y, p, second) == pytest.approx(expected)
    assert F.aurc(y, np.log(p), second, from_logits=True) == pytest.approx(expected)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y, p: F.ece(y, p, num_bins=0), "num_bins"),
        (lambda y, p: F.ece(y, p, binning="equal"), "binning"),
        (lambda y, p: F.ece(y, p, norm="l3"), "norm"),
        (lambda y, p: F.ece(y, p, binning_rule="x"), "binning_rule"),
        (lambda y, p: F.ece(y, p, binning_rule="focal_calibration"), "adaptive"),
        (
            lambda y, p: F.ece(y, p, binning="adaptive", binning_rule="left_closed"),
            "uniform",
        ),
        (lambda y, p: F.cwece(y, p, binning_rule="focal_calibration"), "left_closed"),
        (lambda y, p: F.ece(y, p, sample_weight=-np.ones(10)), "sample_weight"),
        (lambda y, p: F.ece(y, p, sample_weight=np.zeros(10)), "at least one sample"),
        (lambda y, p: F.ece(y[:3], p), "y_true"),
        (lambda y, p: F.calibration_error(p[:, 0], y[:3]), "outcome"),
        (lambda y, p: F.aurc(y, p, csf="energy"), "csf"),
        (lambda y, p: F.aurc(y, p, loss="hinge"), "loss"),
        (lambda y, p: F.risk_at_coverage(y, p, 0.0), "coverage"),
        (lambda y, p: F.coverage_at_risk(y, p, -0.1), "risk"),
        (lambda y, p: F.kde_ece(y, p, kind="all"), "kind"),
        (lambda y, p: F.selective_fallback(y, p, threshold="high"), "threshold"),
    ],
)
def test_bad_arguments_are_named(call, message):
    y, p = data(10, 3)
    with pytest.raises(ValueError, match=message):
        call(y, p)


class _Foreign:
    """A tensor of PyTorch, as far as NumPy can see, on a backend without PyTorch."""

    itemsize = 2

    def __init__(self, array):
        self._array, self._plain = np.asarray(array), False

    def detach(self):
        return self

    cpu = detach

    def is_floating_point(self):
        return True

    def float(self):
        self._plain = True
        return self

    def __array__(self, dtype=None, copy=None):
        assert self._plain, "NumPy does not know bfloat16, and takes no gradient"
        return self._array.astype(dtype or self._array.dtype)


def test_tensors_of_another_framework_may_have_gradients_and_half_precision():
    p = [[0.9, 0.1], [0.2, 0.8]]
    assert F.ece([0, 1], _Foreign(p)) == F.ece([0, 1], np.array(p))
