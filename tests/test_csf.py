"""Confidence score functions: values, supports, gradients, names."""

import keras
import numpy as np
import pytest
import reference
from backends import numpy, value_and_gradient
from keras import ops

from keras_selcal import AULoss, csf

NAMES = ["msp", "margin", "neg_entropy"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [2, 10, 1000])
def test_values(rng, name, k):
    logits = rng.normal(size=(20, k), scale=3).astype("float32")
    p = reference.softmax(logits)
    score = csf.get(name)
    expected = reference.score(p, name)
    np.testing.assert_allclose(numpy(score(p)), expected, rtol=1e-5, atol=1e-6)
    from_logs = score.from_log_probabilities(ops.log_softmax(logits))
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
    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], "float32")
    assert float(again(np.array([0, 1, 1]), p)) == pytest.approx(
        float(AULoss()(np.array([0, 1, 1]), p)), rel=1e-6
    )


@pytest.mark.parametrize("wrong", ["MSP", "entropy", 1.0, None])
def test_unknown_names_list_the_known_ones(wrong):
    with pytest.raises(ValueError, match="'msp', 'margin', 'neg_entropy'"):
        csf.get(wrong)
