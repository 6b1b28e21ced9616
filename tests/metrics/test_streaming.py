"""Streaming metrics against the exact ones, and Keras's conventions."""

import math

import keras
import numpy as np
import pytest
from backends import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from streaming import BATCH, CASES, K, N, data, exact, make, softmax, value

import keras_selcal
from keras_selcal import csf
from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812
from keras_selcal.metrics.ranking import to_cells


def feed(metric, y, p, sample_weight=None, size=BATCH):
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        w = None if sample_weight is None else sample_weight[rows]
        metric.update_state(y[rows], p[rows], w)
    return metric


def weighted_data():
    """Labels, logits and weights, with NaN where the weight is 0."""
    y, z = data()
    w = np.random.default_rng(0).integers(0, 3, N).astype("float32")
    z[w == 0] = np.nan
    return y, z, w


@pytest.mark.parametrize("name", CASES)
def test_batches_add_up_to_the_exact_value(name):
    y, z, w = weighted_data()
    metric = feed(make(name, from_logits=True), y, z, w)
    expected = exact(name, y, z, from_logits=True, sample_weight=w)
    assert value(metric) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_metric_is_merged_and_starts_again(name):
    y, z, w = weighted_data()
    first, second = (make(name, from_logits=True) for _ in range(2))
    feed(first, y[:BATCH], z[:BATCH], w[:BATCH])
    feed(second, y[BATCH:], z[BATCH:], w[BATCH:])
    first.merge_state([second])
    expected = exact(name, y, z, from_logits=True, sample_weight=w)
    assert value(first) == pytest.approx(expected, abs=2e-6)
    second.reset_state()
    z = np.nan_to_num(z)
    feed(second, y, z)
    again = exact(name, y, z, from_logits=True)
    assert value(second) == pytest.approx(again, abs=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_probabilities_and_labels_as_distributions(name):
    y, z = data()
    p, soft = softmax(z), 0.9 * np.eye(K, dtype="float32")[y] + 0.02
    metric = feed(make(name), soft, p)
    assert value(metric) == pytest.approx(exact(name, soft, p), abs=2e-4)


@pytest.mark.parametrize("from_logits", [True, False])
def test_margins_of_zero_tie(from_logits):
    """However probable the two classes at the top are."""
    top = np.linspace(0.5, 3, BATCH).astype("float32")
    z = np.zeros((BATCH, K), "float32")
    z[:, 0] = z[:, 1] = top
    y = (np.arange(BATCH) % 3 > 0).astype("int32")
    z, options = (z, {"from_logits": True}) if from_logits else (softmax(z), {})
    options["csf"] = "margin"
    assert F.failure_auroc(y, z, **options) == 0.5
    assert F.aurc(y, z, **options) == pytest.approx(np.mean(y != 0))
    for metric, expected in ((M.FailureAUROC, 0.5), (M.AURC, np.mean(y != 0))):
        metric = metric(**options)
        metric.update_state(y, z)
        assert value(metric) == pytest.approx(expected, abs=1e-6)


def test_scores_outside_their_support_tie():
    """Uniform rows whose sum is rounded up have an entropy above ln k."""
    sums = 1 + np.linspace(0.001, 0.009, BATCH)
    p = (np.ones((BATCH, K)) * sums[:, None] / K).astype("float32")
    y = (np.arange(BATCH) > 8).astype("int32")
    error = np.mean(y != 0)
    assert F.aurc(y, p, csf="neg_entropy") == pytest.approx(error)
    metric = M.AURC(csf="neg_entropy")
    metric.update_state(y, p)
    assert value(metric) == pytest.approx(error, abs=1e-6)


def test_scores_of_an_untrained_network_share_cells():
    """All lie close together: the error is that of their ties in a cell, at most."""
    rng = np.random.default_rng(0)
    z = 1e-3 * rng.normal(size=(N, K)).astype("float32")
    y = rng.integers(0, K, N)
    metric = feed(M.AURC(from_logits=True), y, z)
    risk = F.risk_at_coverage(y, z, 1.0, from_logits=True)
    exact_value = F.aurc(y, z, from_logits=True)
    low, high = sorted((risk, exact_value))
    assert low - 0.02 <= value(metric) <= high + 0.02
    # More cells tell the scores apart.
    fine = feed(M.AURC(from_logits=True, num_cells=2**20), y, z)
    assert value(fine) == pytest.approx(exact_value, abs=0.01)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e-2, 1.0])
def test_a_metric_is_the_exact_one_of_scores_rounded_to_cells(scale):
    """The promise of `RankingMetric`, also for untrained networks."""
    rng = np.random.default_rng(0)
    z = scale * rng.normal(size=(N, K)).astype("float32")
    y = (z + scale * rng.gumbel(size=z.shape)).argmax(-1).astype("int32")
    tensors = map(ops.convert_to_tensor, np.split(z, range(BATCH, N, BATCH)))
    log_odds = [csf.msp.log_odds_of_logits(tensor, ops) for tensor in tensors]
    cells = np.concatenate([numpy(to_cells(each, 4096)) for each in log_odds])
    rounded = {"scores": cells, "losses": (z.argmax(-1) != y).astype("float64")}
    for metric, expected in (
        (M.AURC(from_logits=True), F.aurc(**rounded)),
        (M.ExcessAURC(from_logits=True), F.excess_aurc(**rounded)),
        (M.AUGRC(from_logits=True), F.augrc(**rounded)),
        (M.FailureAUROC(from_logits=True), F.failure_auroc(**rounded)),
    ):
        assert value(feed(metric, y, z)) == pytest.approx(expected, abs=2e-6)
    if scale == 1e-6:
        assert len(np.unique(cells)) <= 2


@pytest.mark.parametrize("name", ["ece", "aurc"])
def test_the_split_into_batches_does_not_matter(name):
    y, z = data(BATCH)
    expected = exact(name, y, z, from_logits=True)
    metric = feed(make(name, from_logits=True), y, z, size=8)
    assert value(metric) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_order_and_copies_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    y, z = data(BATCH, seed=seed % 100)
    order = rng.permutation(BATCH)
    for name in ("ece_adaptive", "excess_aurc"):
        once = make(name, from_logits=True)
        once.update_state(y, z, np.full(BATCH, 2.0, "float32"))
        twice = make(name, from_logits=True)
        twice.update_state(y, z)
        twice.update_state(y[order], z[order])
        assert value(once) == pytest.approx(value(twice), abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_nan_stays_nan(name):
    y, z = data(BATCH)
    for bad in ("prediction", "label"):
        metric = make(name, from_logits=True)
        broken_y, broken_z = y.copy(), z.copy()
        if bad == "prediction":
            broken_z[3, 1] = np.nan
        else:
            broken_y[3] = K
        metric.update_state(keras.ops.convert_to_tensor(broken_y), broken_z)
        assert math.isnan(value(metric))
        metric.update_state(y, z)
        assert math.isnan(value(metric))
        metric.reset_state()
        metric.update_state(y, z)
        assert not math.isnan(value(metric))


@pytest.mark.parametrize("name", CASES)
def test_nothing_seen(name):
    empty = value(make(name))
    assert math.isnan(empty) if name == "failure_auroc" else empty == 0.0
    metric = make(name)
    y, z = data(BATCH)
    metric.update_state(y, softmax(z), np.zeros(BATCH, "float32"))
    assert value(metric) == pytest.approx(empty, nan_ok=True)


@pytest.mark.parametrize("name", CASES)
def test_config_round_trip(name):
    metric = make(name, from_logits=True, name="mine", dtype="float32")
    config = keras.saving.serialize_keras_object(metric)
    assert config["registered_name"] == f"keras_selcal>{type(metric).__name__}"
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == metric.get_config()
    assert again.name == "mine"
    assert type(again) is type(metric)
    assert getattr(keras_selcal, type(metric).__name__) is type(metric)


def test_a_registered_score_survives_its_config():
    metric = M.AURC(csf=top_share)
    again = M.AURC.from_config(metric.get_config())
    y, z = data(BATCH)
    p = softmax(z)
    again.update_state(y, p)
    assert value(again) == pytest.approx(F.aurc(y, p, top_share), abs=1e-6)
    assert value(again) != pytest.approx(F.aurc(y, p), abs=1e-6)


@keras.saving.register_keras_serializable("tests")
def top_share(p):
    return 1.0 - p[..., 0]


@pytest.mark.parametrize("name", ["ece", "cwece", "brier", "aurc"])
def test_shapes_masks_and_half_precision(name):
    y, z = data(BATCH)
    rounded = ops.cast(ops.convert_to_tensor(z), "bfloat16")
    w = np.repeat([1.0, 0.0, 2.0, 1.0], 6).astype("float32")
    exactly = exact(
        name, y, numpy(ops.cast(rounded, "float32")), from_logits=True, sample_weight=w
    )
    metric = make(name, from_logits=True)
    # (4, 6) samples with a mask, and a weight for each of the four.
    pixels = ops.reshape(rounded, (4, 6, K))
    pixels = _Masked(pixels, np.repeat([[True], [False], [True], [True]], 6, 1))
    metric.update_state(y.reshape(4, 6, 1), pixels, np.array([1.0, 1.0, 2.0, 1.0]))
    assert value(metric) == pytest.approx(exactly, abs=1e-6)
    # As mixed precision hands it over.
    metric.reset_state()
    metric.update_state(y, rounded, w)
    assert value(metric) == pytest.approx(exactly, abs=1e-6)


class _Masked:
    """A tensor with a mask, which not every backend's tensors can carry."""

    def __init__(self, tensor, mask):
        self.tensor, self._keras_mask = ops.cast(tensor, "float32"), mask
        self.dtype, self.shape = self.tensor.dtype, self.tensor.shape

    def __array__(self, dtype=None, copy=None):
        return numpy(self.tensor)


@pytest.mark.parametrize("name", CASES)
def test_stateless_updates(name):
    options = {"num_classes": K} if name.startswith("cwece") else {}
    metric = make(name, from_logits=True, **options)
    y, z = data()
    state = [variable.value for variable in metric.variables]
    for start in range(0, N, BATCH):
        rows = slice(start, start + BATCH)
        state = metric.stateless_update_state(state, y[rows], z[rows])
    expected = exact(name, y, z, from_logits=True)
    result = float(numpy(metric.stateless_result(state)))
    assert result == pytest.approx(expected, abs=2e-6)
    assert value(metric) == pytest.approx(value(make(name, **options)), nan_ok=True)


def test_per_class_errors():
    y, z = data()
    metric = M.ClasswiseCalibrationError(from_logits=True)
    assert value(metric) == 0.0
    with pytest.raises(ValueError, match="num_classes"):
        metric.result_per_class()
    with pytest.raises(ValueError, match="num_classes"):
        metric.stateless_update_state([], y, z)
    merged = M.ClasswiseCalibrationError(from_logits=True)
    merged.merge_state([metric, feed(metric, y, z)][1:])
    expected = F.cwece(y, z, from_logits=True, per_class=True)
    np.testing.assert_allclose(numpy(merged.result_per_class()), expected, atol=1e-6)
    with pytest.raises(ValueError, match=f"{K} classes"):
        metric.update_state(y % 3, z[:, :3])


def test_in_compile():
    y, z = data(60)
    inputs = keras.Input((K,))
    scale = keras.layers.Dense(K, kernel_initializer="identity")
    model = keras.Model(inputs, keras.layers.Softmax()(scale(inputs)))
    # One of each kind of state, one made in the first batch among them.
    names = ("ece_adaptive", "cwece", "brier", "excess_aurc", "coverage_at_risk")
    model.compile(
        optimizer=keras.optimizers.SGD(0.0),
        loss="sparse_categorical_crossentropy",
        metrics=[make(name, name=name) for name in names],
        weighted_metrics=[M.ExpectedCalibrationError(name="weighted")],
    )
    w = (np.arange(60) % 3).astype("float32")
    history = model.fit(z, y, sample_weight=w, batch_size=BATCH, verbose=0).history
    p = softmax(z)
    weighted = F.ece(y, p, sample_weight=w)
    assert history["weighted"][0] == pytest.approx(weighted, abs=1e-5)
    for name in names:
        expected = exact(name, y, p)
        assert history[name][0] == pytest.approx(expected, abs=2e-4), name


def test_a_mask_reaches_the_metric():
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    y = np.array([[0, 1, 1], [2, 0, 0]])
    embedding = keras.layers.Embedding(4, 3, "uniform", mask_zero=True)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=[M.BrierScore(from_logits=True)])
    got = model.evaluate(tokens, y, verbose=0, return_dict=True)["brier"]
    p = softmax(numpy(embedding.embeddings)[tokens])
    expected = F.brier(y, p, sample_weight=tokens > 0)
    assert got == pytest.approx(expected, abs=1e-6)
    assert got != pytest.approx(F.brier(y, p), abs=1e-6)


def of_labels(k):
    """Returns a metric that has seen k labels."""
    metric = M.AURC(multi_label=True)
    metric.update_state(np.zeros((4, k)), np.full((4, k), 0.3))
    return metric


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: M.ExpectedCalibrationError(num_bins=0), "num_bins"),
        (lambda: M.ExpectedCalibrationError(binning="equal"), "binning"),
        (lambda: M.ExpectedCalibrationError(norm="l3"), "norm"),
        (lambda: M.ClasswiseCalibrationError(num_classes=1), "num_classes"),
        (lambda: M.AURC(csf="energy"), "csf"),
        (lambda: M.AURC(num_cells=1), "num_cells"),
        (lambda: M.RiskAtCoverage(1.5), "coverage"),
        (lambda: M.CoverageAtRisk(-0.5), "risk"),
        (lambda: M.AURC().merge_state([M.AUGRC()]), "metrics"),
        (lambda: of_labels(3).merge_state([of_labels(1)]), "metrics"),
        (lambda: M.AURC().merge_state([M.AURC(csf="margin")]), "metrics"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", CASES)
def test_labels_that_do_not_fit_one_unit(name):
    with pytest.raises(ValueError, match=r"one sigmoid.*y_pred.shape=\(3, 1\)"):
        make(name).update_state(np.zeros((3, 2)), np.full((3, 1), 0.5))


class _LogLoss(M.ClassificationMetric):
    """A metric of a user, who computes with tensors."""

    def __init__(self, **options):
        super().__init__(**options)
        self.build_state()

    def create_state(self, num_parts):
        self.sums = self.add_sums("sums", (num_parts, 2))

    def update(self, batch, w):
        loss = -ops.sum(batch.distributions * batch.log_p, axis=-1)
        rows = ops.stack([w, w * loss], axis=-1)
        self.accumulate(self.sums, ops.sum(rows, axis=0)[None])

    def compute(self):
        sums = self.total(self.sums)
        return ops.divide(sums[:, 1], sums[:, 0]), sums[:, 0]


def test_metrics_of_users_compute_with_tensors():
    metric = _LogLoss()
    p = np.array([[0.9, 0.1], [0.2, 0.8]], "float32")
    metric.update_state(ops.convert_to_tensor([0, 1]), ops.convert_to_tensor(p))
    expected = -np.log([0.9, 0.8]).mean()
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)
