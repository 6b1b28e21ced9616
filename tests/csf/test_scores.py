"""Confidence score functions: values, supports, gradients, names."""

import re

import keras
import numpy as np
import pytest
import reference
from backends import numpy, one_off, value_and_gradient
from keras import ops
from loss_cases import data

from keras_selcal import (
    AULoss,
    AURCLoss,
    CalibrationReport,
    SelectiveClassifier,
    csf,
    plots,
)
from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

NAMES = ["msp", "margin", "neg_entropy", "doctor", "gen"]
OF_LOGITS = ["max_logit", "energy", "max_logit_pnorm"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [2, 5, 1000])
def test_values(rng, name, k):
    logits = rng.normal(size=(24, k), scale=3).astype("float32")
    p = reference.softmax(logits)
    score = csf.get(name)
    expected = reference.score(p, name)
    np.testing.assert_allclose(numpy(score(p)), expected, rtol=1e-5, atol=1e-6)
    from_logs = score.of_log_p(ops.log_softmax(logits), ops)
    np.testing.assert_allclose(numpy(from_logs), expected, rtol=1e-5, atol=2e-6)
    lo, hi = score.support(k)
    assert lo <= expected.min()
    assert expected.max() <= hi


@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_the_support_are_reached(name):
    k = 7
    lo, hi = csf.get(name).support(k)
    sure, unsure = np.eye(k)[0], np.full(k, 1 / k)
    assert float(csf.get(name)(sure)) == pytest.approx(hi, abs=1e-6)
    lowest = 1 / k if name == "msp" else lo
    assert float(csf.get(name)(unsure)) == pytest.approx(lowest, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_at_certainty_and_ties(name):
    p = np.array([[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3], "float32")
    score = csf.get(name)
    _, gradient = value_and_gradient(lambda p: ops.sum(score(p)), p)
    assert np.isfinite(gradient).all()


def test_low_precision_is_computed_in_float32():
    p = ops.cast(ops.convert_to_tensor([[0.9, 0.1], [1.0, 0.0]]), "float16")
    score = csf.neg_entropy(p)
    assert "float32" in str(score.dtype)
    assert np.isfinite(numpy(score)).all()


def test_get():
    assert csf.get("msp") is csf.msp
    assert csf.get("margin") is csf.margin
    assert csf.get("neg_entropy") is csf.neg_entropy
    assert csf.get(csf.msp) is csf.msp
    plain = csf.get(lambda p: p[..., 0])
    assert plain.support(5) == (0.0, 1.0)


def test_a_callable_tells_its_support():
    def by_pair(p):
        return 3 * p[..., 0]

    by_pair.support = (0, 3)

    def by_classes(p):
        return ops.sum(p * p, axis=-1)

    by_classes.support = lambda num_classes: (1 / num_classes, 1)
    assert csf.get(by_pair).support(10) == (0.0, 3.0)
    assert csf.get(by_classes).support(10) == (0.1, 1.0)
    by_pair.support = (3, 0)
    with pytest.raises(ValueError, match="support"):
        csf.get(by_pair).support(10)


@keras.saving.register_keras_serializable("keras_selcal_tests")
def tripled(p):
    return 3 * ops.max(p, axis=-1)


def test_a_support_given_beside_the_callable_is_saved_too():
    score = csf.ConfidenceScore(tripled, support=(0, 3))
    loss = AULoss(csf=score)
    again = AULoss.from_config(loss.get_config())
    assert again.csf.support(4) == (0.0, 3.0)
    logits, labels = data(24, 5)
    p = reference.softmax(logits).astype("float32")
    expected = float(AULoss()(labels, p))
    assert float(again(labels, p)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("wrong", ["MSP", "entropy", 1.0, None])
def test_unknown_names_list_the_known_ones(wrong):
    with pytest.raises(ValueError, match="'msp', 'margin', 'neg_entropy'"):
        csf.get(wrong)


@pytest.mark.parametrize("name", OF_LOGITS)
@pytest.mark.parametrize("k", [2, 5, 1000])
def test_values_of_logits(rng, name, k):
    logits = rng.normal(size=(24, k), scale=3).astype("float32")
    expected = reference.logit_score(logits, name)
    score = csf.get(name)
    np.testing.assert_allclose(numpy(score(logits)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        score.scores(logits.astype("float64"), np), expected, rtol=1e-12
    )
    _, gradient = value_and_gradient(lambda z: ops.sum(score(z)), logits)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("p", [1, 2, 3.5, 8])
def test_p_norm_is_the_quotient_of_centred_logits(rng, p):
    logits = rng.normal(size=(20, 7), scale=3).astype("float32")
    score = csf.MaxLogitPNorm(p)
    expected = reference.logit_score(logits, "max_logit_pnorm", p)
    np.testing.assert_allclose(numpy(score(logits)), expected, rtol=1e-5)
    # Neither a shift nor a scale matters; masked classes do not count.
    moved = numpy(score(5 * logits - 2))
    np.testing.assert_allclose(moved, expected, rtol=1e-5)
    masked = np.concatenate([logits, np.full((20, 1), -np.inf, "float32")], axis=-1)
    np.testing.assert_allclose(numpy(score(masked)), expected, rtol=1e-5)
    assert numpy(score(np.full((2, 20), 0.05, "float32"))).tolist() == [0.0, 0.0]
    assert expected.min() >= 0
    assert expected.max() <= 1


def test_p_must_be_at_least_one():
    with pytest.raises(ValueError, match="`p` must be a number of at least 1"):
        csf.MaxLogitPNorm(0.5)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_log_odds_of_logits_rise_with_the_score(rng, name):
    score = csf.get(name)
    logits = rng.normal(size=(200, 5), scale=3).astype("float32")
    expected = reference.logit_score(logits, name)
    order = np.argsort(expected)
    rising = numpy(score.log_odds(ops.convert_to_tensor(logits), ops))[order]
    assert (np.diff(rising) >= -1e-4).all()
    assert np.isfinite(rising).all()


STREAMING = {F.aurc: M.AURC, F.augrc: M.AUGRC, F.failure_auroc: M.FailureAUROC}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        *((F.failure_auroc, name) for name in NAMES + OF_LOGITS),
        *((F.aurc, name) for name in NAMES + OF_LOGITS),
        (F.augrc, "energy"),
    ],
)
def test_every_score_ranks_in_functions_and_metrics_alike(rng, name, function):
    y = rng.integers(0, 5, 120)
    logits = (2 * np.eye(5)[y] + rng.normal(size=(120, 5))).astype("float32")
    exact = function(y, logits, csf=name, from_logits=True)
    if name in NAMES:
        scores = reference.score(reference.softmax(logits), name)
    else:
        scores = reference.logit_score(logits, name)
    wrong = logits.argmax(axis=-1) != y
    if function is F.failure_auroc:
        below = scores[wrong][:, None] < scores[~wrong]
        assert exact == pytest.approx(below.mean(), abs=1e-9)
    streamed = STREAMING[function](csf=name, from_logits=True)
    for rows in np.split(np.arange(120), 5):
        streamed.update_state(y[rows], logits[rows])
    assert float(streamed.result()) == pytest.approx(exact, abs=2e-3)


@pytest.mark.parametrize("name", [*NAMES, *OF_LOGITS])
def test_every_score_ranks_in_losses(rng, name):
    n, k = 24, 5
    y = rng.integers(0, k, n)
    logits = (2 * np.eye(k)[y] + rng.normal(size=(n, k))).astype("float32")
    for loss in (
        AULoss(csf=name, from_logits=True),
        AULoss(csf=name, from_logits=True, weight_gradient=0.1, smoothing=0.3),
        AURCLoss(csf=name, from_logits=True),
    ):
        again = type(loss).from_config(loss.get_config())
        value, gradient = value_and_gradient(lambda z, f=loss: f(y, z), logits)
        assert np.isfinite(gradient).all()
        assert float(again(y, logits)) == pytest.approx(float(value), rel=1e-5)
    scores = numpy(csf.get(name)(logits if name in OF_LOGITS else ops.softmax(logits)))
    order = np.argsort(scores)
    harmonic = np.cumsum(1 / np.arange(n, 0, -1.0))
    nll = -reference.log_softmax(logits)[np.arange(n), y]
    expected = (harmonic * nll[order]).mean()
    assert float(value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_scores_of_logits_need_logits(name):
    p, y = np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1])
    softmax = keras.Sequential([keras.Input((2,)), keras.layers.Softmax()])
    for call in (
        lambda: F.aurc(y, p, csf=name),
        lambda: M.AURC(csf=name),
        lambda: AULoss(csf=name),
        lambda: AURCLoss(csf=name),
        lambda: SelectiveClassifier(softmax, csf=name),
    ):
        with pytest.raises(ValueError, match=f"{name}.* needs logits.*from_logits"):
            call()


def binary_logits(rng, n=400, shape=(1,)):
    """Logits of calibrated sigmoids, and labels, (n, *shape)."""
    logits = rng.normal(size=(n, *shape), scale=2).astype("float32")
    y = rng.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))
    return logits, y.astype("int32")


@pytest.mark.parametrize("name", [*NAMES, "max_logit", "energy"])
def test_one_unit_has_the_scores_of_its_two_columns(rng, name):
    z, y = binary_logits(rng, 24)
    columns = np.concatenate([np.zeros_like(z), z], axis=-1)
    options = {"csf": name, "from_logits": True}
    assert F.aurc(y, z, **options) == F.aurc(y[:, 0], columns, **options)
    assert F.ood_auroc(z[::2], z[1::2], **options) == F.ood_auroc(
        columns[::2], columns[1::2], **options
    )
    loss = AURCLoss(**options)
    expected = float(loss(y[:, 0], columns))
    assert float(loss(y, z)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("outputs", ["unit", "labels", "columns"])
def test_a_score_that_is_constant_for_two_classes_is_refused(rng, outputs):
    name = "max_logit_pnorm"
    z, y = binary_logits(rng, 20, (3,) if outputs == "labels" else (1,))
    options = {"csf": name, "from_logits": True}
    if outputs == "labels":
        options["multi_label"] = True
    if outputs == "columns":
        z, y = np.concatenate([np.zeros_like(z), z], axis=-1), y[:, 0]
    linear = keras.Sequential([keras.Input((z.shape[-1],)), keras.layers.Identity()])
    calls = [
        lambda: F.aurc(y, z, **options),
        lambda: M.AURC(**options).update_state(y, z),
        lambda: AULoss(**options)(y, z),
        lambda: AURCLoss(**options)(y, z),
        lambda: CalibrationReport(y, z, bootstrap=0, **options),
        lambda: SelectiveClassifier(linear, **options).fit(z, y, coverage=0.5),
        lambda: csf.compare(
            z, y, candidates=[csf.get(name)], multi_label=outputs == "labels"
        ),
    ]
    if outputs != "labels":
        calls.append(lambda: F.ood_auroc(z, z, **options))
        calls.append(lambda: plots.risk_coverage_curve(y, z, **options))
    for call in calls:
        with pytest.raises(ValueError, match=f"`csf` must be 'msp' .*'{name}' "):
            call()


@pytest.mark.parametrize(
    ("shape", "left"),
    [((1,), NAMES), ((3,), NAMES), ((2,), [*NAMES, "max_logit", "energy"])],
    ids=["unit", "labels", "columns"],
)
def test_the_choice_leaves_out_scores_that_mean_nothing(rng, shape, left):
    z, y = binary_logits(rng, shape=shape)
    options = {"from_logits": True, "multi_label": shape == (3,)}
    if shape == (2,):
        y = (z.argmax(axis=-1) ^ (rng.uniform(size=len(z)) < 0.2)).astype("int32")
    assert set(csf.compare(z, y, **options).aurc) == set(left)
    # A callable of the user is not judged.
    own = csf.ConfidenceScore(lambda z: ops.max(ops.abs(z), -1), None, needs="logits")
    assert "<lambda>" in csf.compare(z, y, candidates=[own], **options).aurc
    linear = keras.Sequential([keras.Input(shape), keras.layers.Identity()])
    classifier = SelectiveClassifier(linear, csf="auto", **options)
    classifier.fit(z, y, coverage=0.5, verbose=0)
    assert classifier.csf.__name__ in left


def test_the_parameter_of_the_norm_is_saved():
    metric = M.AURC(csf=csf.MaxLogitPNorm(3), from_logits=True)
    again = M.AURC.from_config(metric.get_config())
    assert again.csf.p == 3
    loss = AULoss(csf=csf.MaxLogitPNorm(3), from_logits=True)
    assert AULoss.from_config(loss.get_config()).csf.p == 3


def test_a_callable_can_ask_for_logits(rng):
    def largest(logits):
        return ops.max(logits, axis=-1)

    largest.support, largest.needs = None, "logits"
    logits = rng.normal(size=(50, 4), scale=3).astype("float32")
    y = rng.integers(0, 4, 50)
    expected = F.aurc(y, logits, csf="max_logit", from_logits=True)
    found = F.aurc(y, logits, csf=largest, from_logits=True)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        (lambda p: ops.max(p, axis=-1, keepdims=True), "(24, 1)"),
        (lambda p: ops.max(p), "()"),
        (lambda p: ops.max(p, axis=0), "(5,)"),
        (lambda p: p, "(24, 5)"),
    ],
)
def test_scores_of_another_shape_are_refused(rng, wrong, shape):
    p, y = rng.dirichlet(np.ones(5), 24), np.arange(24) % 5
    message = re.escape(f"one score for each row of (24, 5), not {shape}. Received")
    with pytest.raises(ValueError, match=message):
        AULoss(csf=wrong)(y, p)
    with pytest.raises(ValueError, match=message):
        M.AURC(csf=wrong).update_state(y, p)
    with pytest.raises(ValueError, match=message):
        F.aurc(y, p, csf=wrong)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="others know every rank"
)
def test_scores_of_unknown_rank_are_taken(rng):
    import tensorflow as tf

    p, y = rng.dirichlet(np.ones(5), 24).astype("float32"), np.arange(24) % 5
    metric = M.AURC(csf=lambda p: tf.numpy_function(np.amax, [p, -1], tf.float32))
    tf.function(metric.update_state)(y, p)
    assert float(metric.result()) == pytest.approx(F.aurc(y, p), abs=1e-4)


def test_scores_are_outputs_of_functional_models(rng):
    inputs, scores = keras.Input((20,)), [csf.get(name) for name in NAMES + OF_LOGITS]
    model = keras.Model(inputs, [score(inputs) for score in scores])
    p = rng.dirichlet(np.ones(20), 24).astype("float32")
    p[0], p[1] = np.eye(20)[3], 0.05
    for found, score in zip(one_off(model)(p), scores, strict=True):
        np.testing.assert_allclose(numpy(found), numpy(score(p)), rtol=1e-5)
