"""Where the gradient of a loss is positive, against closed forms."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from scipy.optimize import brentq
from scipy.special import lambertw

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
)
from keras_selcal.losses.analysis import drag, loss_curve, sample_gradients

quiet = pytest.mark.filterwarnings("ignore:InverseFocalLoss with", "ignore:AULoss with")

# γ (−p ln p) > 1 + p: the sign of the gradient of inverse focal loss.
WORST = lambertw(1 / np.e).real
CRITICAL = 1 / WORST


@quiet
def test_inverse_focal_is_positive_above_the_exact_gamma():
    assert pytest.approx(3.5911, abs=1e-4) == CRITICAL
    assert loss_curve(InverseFocalLoss(CRITICAL - 0.02)).positive == ()
    ((low, high),) = loss_curve(InverseFocalLoss(CRITICAL + 0.02)).positive
    assert low < WORST < high
    assert high - low < 0.08
    # The paper's γ > 4.
    for gamma in (4.0, 6.0):
        ((low, high),) = loss_curve(InverseFocalLoss(gamma)).positive

        def excess(p, gamma=gamma):
            return -gamma * p * np.log(p) - (1 + p)

        assert low == pytest.approx(brentq(excess, 1e-3, WORST), abs=1 / 256)
        assert high == pytest.approx(brentq(excess, WORST, 0.99), abs=1 / 256)


@pytest.mark.parametrize(
    "loss",
    [FocalLoss(0), FocalLoss(3.5), FocalLoss("53"), DualFocalLoss(), AURCLoss()],
    ids=lambda loss: loss.name,
)
def test_gradient_of_these_losses_is_nowhere_positive(loss):
    assert loss_curve(loss).positive == ()


def au_terms(k, smoothing, p):
    """Returns β and ∂β/∂p in a large batch of uniform confidence."""
    u = 1 / k + (1 - 1 / k) * (np.arange(1024) + 0.5) / 1024
    tau = np.quantile(u, 0.75)
    c = 1 / reference.soft_cdf(u, tau, smoothing=smoothing)
    cdf = reference.soft_cdf(u, np.minimum(p, tau), smoothing=smoothing)
    slope = reference.soft_cdf_slope(u, p, smoothing=smoothing)
    return -c * np.log1p(-cdf), c * np.where(p < tau, slope / (1 - cdf), 0)


@quiet
@pytest.mark.parametrize(
    ("k", "smoothing", "share", "somewhere"),
    [
        (10, 0.02, 1.0, True),
        (10, 0.02, 0.1, False),
        (10, 0.1, 1.0, True),
        (10, 0.3, 1.0, False),
        (100, 0.1, 1.0, True),
    ],
)
def test_au_is_positive_where_the_closed_form_is(k, smoothing, share, somewhere):
    curve = loss_curve(AULoss(smoothing=smoothing, weight_gradient=share), k)
    beta, slope = au_terms(k, smoothing, curve.p)
    expected = -share * slope * np.log(curve.p) - beta / curve.p
    # Below 1/k another class is on top.
    expected = np.where(curve.p > 1 / k, expected, -1)
    clear = np.abs(expected) > 0.02 * beta / curve.p
    inside = np.zeros(len(curve.p), bool)
    for low, high in curve.positive:
        inside |= (low < curve.p) & (curve.p < high)
    np.testing.assert_array_equal(inside[clear], (expected > 0)[clear])
    assert (curve.positive != ()) is somewhere


@quiet
@pytest.mark.parametrize(("k", "smoothing", "share"), [(10, 0.3, 0.4), (10, 1.0, 1.0)])
def test_drag_is_what_the_gradient_does_to_confidence_at_the_start(k, smoothing, share):
    # All confidences near 1/k.
    confidence = 1 / k + np.linspace(0, 0.04, 1024)
    others = (1 - confidence)[:, None] / (k - 1)
    y_pred = np.concatenate(
        [confidence[:, None], np.repeat(others, k - 1, axis=1)], axis=1
    )
    loss = AULoss(quantile=1.0, smoothing=smoothing, weight_gradient=share)
    curve = loss_curve(loss, y_pred=y_pred)
    p, weight = curve.p[28], curve.weight[28]  # p = 0.113
    # Share of ∂β ℓ, by which accuracy must exceed p: w (β′/β) ℓ p (1 − p).
    through = curve.gradient[28] + weight / p
    found = through / weight * p * (1 - p)
    assert found == pytest.approx(drag(share, smoothing, k), rel=0.1)


def test_drag_in_figures():
    # design: 0.149 w/ν for 10 classes, 0.033 w/ν for 100.
    assert drag(1.0, 0.1, 10) == pytest.approx(1.49, abs=0.01)
    assert drag(0.5, 0.1, 100) == pytest.approx(0.165, abs=0.002)
    assert drag(0.0, 0.01, 10) == 0


def test_gradient_of_the_prediction_is_that_of_confidence():
    p = np.array([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]])
    found = sample_gradients(FocalLoss(0), [0, 1], p, of="prediction")
    np.testing.assert_allclose(found.p, [0.5, 0.6])
    # −1/p where the prediction is right; elsewhere p_y is a share of 1 − p.
    np.testing.assert_allclose(found.gradient, [-1 / 0.5, 1 / 0.4], rtol=1e-5)


def mean_gradients(scale, **options):
    """Mean gradients of AU with respect to confidence; half of a batch is right."""
    rng = np.random.default_rng(0)
    logits = scale * rng.normal(size=(2048, 10))
    top = logits.argmax(-1)
    right = rng.random(len(top)) < 0.5
    y = np.where(right, top, (top + rng.integers(1, 10, len(top))) % 10)
    kinds = {
        "constant": {},
        "score": {"weight_gradient": 1.0},
        "cdf": {"weight_gradient": 1.0, "through": "cdf"},
    }
    return {
        name: sample_gradients(
            AULoss(smoothing=0.1, **kind, **options),
            *(y, logits),
            from_logits=True,
            of="prediction",
        ).gradient.mean()
        for name, kind in kinds.items()
    }


@quiet
def test_only_the_gradient_through_the_score_lowers_all_confidences():
    mean = mean_gradients(0.5)
    assert mean["constant"] < -1
    assert mean["score"] > 5
    assert mean["cdf"] == pytest.approx(mean["constant"], abs=0.05)


@quiet
def test_the_whole_gradient_drags_where_scores_lie_at_the_end_of_their_support():
    # Margins below 1/128, half a bin.
    mean = mean_gradients(0.02, csf="margin")
    assert mean["constant"] < 0 < mean["cdf"] <= mean["score"]


def test_curves_of_other_losses_are_their_exact_derivatives():
    half, quarter = 127, 63
    for loss in (
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        "sparse_categorical_crossentropy",
    ):
        curve = loss_curve(loss)
        np.testing.assert_allclose(curve.gradient, -1 / curve.p, rtol=1e-4)
        np.testing.assert_allclose(curve.loss, -np.log(curve.p), atol=1e-5)
        assert set(curve.weight) == {1.0}
    upside_down = loss_curve(lambda y, p: ops.sum(y * p, axis=-1))
    assert upside_down.positive == ((1 / 256, 255 / 256),)
    # In a calibrated batch the kernels leave cross-entropy nearly as it is at λ = 0.01.
    kde = loss_curve(KDECrossentropy(kde_weight=0.01))
    assert kde.gradient[quarter] == pytest.approx(-4, abs=0.05)
    assert kde.gradient[half] == pytest.approx(-2, abs=0.05)


def test_a_rival_changes_the_weight_of_dual_focal_loss():
    p = loss_curve(FocalLoss()).p
    for rival, largest in ((1.0, 1 - p), (0.4, 0.4 * (1 - p))):
        curve = loss_curve(DualFocalLoss(2.0), rival=rival)
        np.testing.assert_allclose(curve.weight, (1 - p + largest) ** 2, rtol=1e-4)


def test_the_strength_of_a_loss_moves_its_weight():
    curve = loss_curve(FocalLoss(2.0, strength=0.25))
    expected = 1 + 0.25 * ((1 - curve.p) ** 2 - 1)
    np.testing.assert_allclose(curve.weight, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"loss": 3}, "loss"),
        ({"num_classes": 1}, "num_classes"),
        ({"y_pred": np.ones(3)}, "y_pred"),
        ({"y_pred": np.full((4, 3), 2.0)}, "y_pred"),
        ({"rival": 0.1}, "rival"),
        ({"rival": 1.1}, "rival"),
    ],
    ids=repr,
)
def test_bad_arguments(options, argument):
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        loss_curve(**{"loss": FocalLoss(), **options})
