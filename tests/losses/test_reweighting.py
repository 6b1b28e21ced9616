"""A weight times a loss: subclasses, base losses, and arguments that are refused."""

import keras
import numpy as np
import pytest
import reference
from backends import numpy
from keras import ops
from loss_cases import data

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
    ReweightedLoss,
)


@keras.saving.register_keras_serializable("keras_selcal_tests")
class HardExamples(ReweightedLoss):
    def weights(self, batch):
        return 1 + batch.one_minus_p_y


@keras.saving.register_keras_serializable("keras_selcal_tests")
def squared_error(y_true, y_pred):
    return ops.sum(ops.square(ops.one_hot(ops.cast(y_true, "int32"), 5) - y_pred), -1)


def test_a_subclass_defines_its_weights():
    logits, labels = data(24, 5)
    log_p_y = reference.log_softmax(logits)[np.arange(24), labels]
    expected = np.mean((2 - np.exp(log_p_y)) * -log_p_y)
    loss = HardExamples(from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("base", "equal"),
    [
        (keras.losses.SparseCategoricalCrossentropy(), "crossentropy"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), "crossentropy"),
        (squared_error, "brier"),
        (keras.losses.CategoricalCrossentropy(), "crossentropy"),
        (FocalLoss(gamma=0.0), "crossentropy"),
    ],
)
def test_base_losses_equal_the_built_in_ones(base, equal):
    logits, labels = data(24, 5)
    for cls in (AULoss, AURCLoss):
        loss = cls(base_loss=base, from_logits=True)
        expected = float(cls(base_loss=equal, from_logits=True)(labels, logits))
        assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-5)
        again = cls.from_config(loss.get_config())
        assert float(again(labels, logits)) == pytest.approx(expected, rel=1e-5)


def test_a_keras_loss_of_distributions_gets_them_for_any_batch_size():
    logits, labels = data(24, 5)
    loss = AULoss(base_loss=keras.losses.MeanSquaredError(), from_logits=True)
    for n in (5, 24):
        y, z = labels[:n], logits[:n]
        expected = AULoss(base_loss="brier", from_logits=True)(y, z) / 5
        assert float(loss(y, z)) == pytest.approx(float(expected), rel=1e-5)


def test_options_of_a_base_loss_count():
    logits, labels = data(24, 5)
    focal = FocalLoss(label_smoothing=0.3, from_logits=True, reduction="none")
    loss = HardExamples(base_loss=focal, from_logits=True)
    log_p_y = reference.log_softmax(logits)[np.arange(24), labels]
    expected = np.mean((2 - np.exp(log_p_y)) * numpy(focal(labels, logits)))
    assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-5)
    ignoring = FocalLoss(ignore_class=1)
    AULoss(base_loss=ignoring, ignore_class=1)
    with pytest.raises(ValueError, match="`base_loss` must be without `ignore_class`"):
        AULoss(base_loss=ignoring)


def test_the_base_loss_may_be_reweighted_too():
    logits, labels = data(24, 5)
    inner = FocalLoss(gamma=3.0)
    loss = AULoss(base_loss=inner, from_logits=True, reduction="none")
    expected = numpy(AULoss(from_logits=True, reduction="none")(labels, logits))
    p_y = reference.softmax(logits)[np.arange(24), labels]
    np.testing.assert_allclose(
        numpy(loss(labels, logits)), expected * (1 - p_y) ** 3, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("make_loss", "words"),
    [
        (lambda: AULoss(csf="msq"), ["csf", "msq", "msp", "margin", "neg_entropy"]),
        (lambda: AULoss(csf=3), ["csf", "3"]),
        (lambda: AULoss(quantile=0), ["quantile", "0", "(0, 1]"]),
        (lambda: AULoss(quantile=1.5), ["quantile", "1.5"]),
        (lambda: AULoss(quantile="all"), ["quantile", "all"]),
        (lambda: AULoss(quantile=0.5, threshold=0.5), ["quantile", "threshold"]),
        (lambda: AULoss(quantile=0.75, threshold=0.5), ["quantile", "threshold"]),
        (lambda: AULoss(smoothing=0), ["smoothing", "above 0"]),
        (lambda: AULoss(smoothing=-1), ["smoothing", "-1"]),
        (lambda: AULoss(num_bins=0), ["num_bins", "0"]),
        (lambda: AULoss(num_bins="many"), ["num_bins", "many"]),
        (lambda: AULoss(weight_gradient=1.01), ["weight_gradient", "[0, 1]"]),
        (lambda: AULoss(weight_gradient=-0.1), ["weight_gradient", "-0.1"]),
        (lambda: AULoss(through="rank"), ["through", "rank", "score", "cdf"]),
        (lambda: AULoss(base_loss="mse?"), ["base_loss", "mse?", "crossentropy"]),
        (lambda: AULoss(reduction="product"), ["reduction", "product"]),
        (lambda: AURCLoss(estimator="linear"), ["estimator", "linear", "harmonic"]),
        (lambda: FocalLoss(gamma=-1), ["gamma", "-1"]),
        (lambda: FocalLoss(gamma="35"), ["gamma", "35", "53"]),
        (lambda: InverseFocalLoss(gamma=-1), ["gamma", "-1"]),
        (lambda: DualFocalLoss(gamma=-0.5), ["gamma", "-0.5"]),
        (lambda: FocalLoss(gamma=None), ["gamma", "None"]),
        (lambda: KDECrossentropy(kind="all"), ["kind", "all", "canonical"]),
        (lambda: KDECrossentropy(bandwidth=0), ["bandwidth", "0", "auto"]),
        (lambda: KDECrossentropy(bandwidth="best"), ["bandwidth", "best", "auto"]),
        (lambda: KDECrossentropy(kde_weight=-1), ["kde_weight", "-1"]),
        (lambda: KDECrossentropy(exponent=0), ["exponent", "0"]),
        (lambda: KDECrossentropy(block_size=0), ["block_size", "0", "at least 1"]),
        (lambda: KDECrossentropy(subsample=2.5), ["subsample", "2.5"]),
    ],
)
def test_bad_arguments(make_loss, words):
    with pytest.raises(ValueError) as error:
        make_loss()
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("y_true", "y_pred"),
    [
        ((5,), (4, 3)),
        ((4, 2), (4, 3)),
        ((4, 3, 1), (4, 3)),
        ((4, 2), (4, 1)),
        ((5,), (4,)),
        ((4, 3), (4, 2, 3, 5)),
    ],
)
def test_shapes_that_do_not_fit(y_true, y_pred):
    with pytest.raises(ValueError) as error:
        AULoss()(np.zeros(y_true, "int32"), np.full(y_pred, 0.5, "float32"))
    assert "y_pred" in str(error.value)
    assert str(y_pred) in str(error.value)


def test_weight_that_does_not_fit():
    logits, labels = data(24, 5)
    with pytest.raises(ValueError, match="sample_weight"):
        AULoss(from_logits=True)(labels, logits, sample_weight=np.ones((24, 5)))


def test_threshold_beyond_the_support():
    logits, labels = data(24, 5)
    with pytest.raises(ValueError, match="threshold"):
        AULoss(csf="neg_entropy", threshold=0.5, from_logits=True)(labels, logits)


def test_base_loss_that_reduces_is_refused():
    logits, labels = data(24, 5)
    loss = AULoss(base_loss=lambda y_true, y_pred: ops.mean(y_pred), from_logits=True)
    with pytest.raises(ValueError, match="base_loss"):
        loss(labels, logits)


def test_drag_warns_once():
    logits, labels = data(128, 10)
    loss = AULoss(smoothing=0.1, weight_gradient=1, from_logits=True)
    with pytest.warns(UserWarning, match=r"w=1.*ν=0\.1.*D=1\.5.*k=10"):
        loss(labels, logits)
    loss(labels, logits)
    AULoss(weight_gradient=1, smoothing=1.6, from_logits=True)(labels, logits)


def test_inverse_focal_warns_of_large_gamma():
    InverseFocalLoss(gamma=3.5)
    with pytest.warns(UserWarning, match=r"gamma=4"):
        InverseFocalLoss(gamma=4)
