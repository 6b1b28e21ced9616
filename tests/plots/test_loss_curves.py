"""Plots of weights, values and gradients of losses, which each backend computes."""

import numpy as np
import pytest
import reference
from matplotlib.figure import Figure
from plot_data import PROBABILITIES, N, Y, line, stairs

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
)
from keras_selcal.plots import loss_curves as loss_plots

P = np.arange(1, 256) / 256


def curve(draw, loss, **options):
    ax = draw({"it": loss}, normalize=False, ax=Figure().subplots(), **options)
    drawn = line(ax, "it")
    np.testing.assert_array_equal(drawn.get_xdata(), P)
    return drawn.get_ydata()


def test_weights_of_the_focal_family():
    draw = loss_plots.loss_weights
    for gamma in (0.0, 1.0, 3.0):
        np.testing.assert_allclose(
            curve(draw, FocalLoss(gamma)), (1 - P) ** gamma, rtol=1e-5
        )
        np.testing.assert_allclose(
            curve(draw, InverseFocalLoss(gamma)), (1 + P) ** gamma, rtol=1e-5
        )
    expected = (1 - P + (1 - P) / 9) ** 2
    np.testing.assert_allclose(curve(draw, DualFocalLoss(2.0)), expected, rtol=1e-5)


def test_weights_of_aurc_and_au_in_a_large_uniform_batch():
    k = 10
    score = np.maximum(P, (1 - P) / (k - 1))
    cdf = (score - 1 / k) / (1 - 1 / k)
    alpha = curve(loss_plots.loss_weights, AURCLoss())
    # The reference is 1024 evenly spaced predictions.
    np.testing.assert_allclose(alpha[:-5], -np.log1p(-cdf)[:-5], rtol=0.02, atol=1e-3)
    u = 1 / k + (1 - 1 / k) * (np.arange(1024) + 0.5) / 1024
    tau = np.quantile(u, 0.75)
    expected = -np.log1p(-reference.soft_cdf(u, np.minimum(score, tau)))
    expected /= reference.soft_cdf(u, tau)
    beta = curve(loss_plots.loss_weights, AULoss(smoothing=0.1))
    np.testing.assert_allclose(beta, expected, rtol=2e-3)


def test_weights_follow_the_predictions_that_are_given():
    # Of the default reference's shape: JAX compiles nothing anew.
    logits = np.random.default_rng(1).normal(size=(1024, 10))
    p = reference.softmax(3 * logits)
    u = p.max(-1)
    beta = curve(
        loss_plots.loss_weights, AULoss(smoothing=0.1), num_classes=2, y_pred=p
    )
    score = np.maximum(P, (1 - P) / 9)
    tau = np.quantile(u, 0.75)
    expected = -np.log1p(-reference.soft_cdf(u, np.minimum(score, tau)))
    expected /= reference.soft_cdf(u, tau)
    np.testing.assert_allclose(beta, expected, rtol=5e-3)
    uniform = curve(loss_plots.loss_weights, AULoss(smoothing=0.1))
    assert np.abs(beta - uniform).max() > 0.1


def test_normalised_weights_have_mean_1_and_gradients_the_same_scale(ax):
    loss_plots.loss_weights("focal_loss", ax=ax)
    weight = line(ax, "focal loss").get_ydata()
    assert weight.mean() == pytest.approx(1)
    scale = curve(loss_plots.loss_weights, FocalLoss()).mean()
    ax = loss_plots.loss_gradients(FocalLoss())
    np.testing.assert_allclose(
        line(ax, "focal loss").get_ydata() * scale,
        curve(loss_plots.loss_gradients, FocalLoss()),
    )


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 3.5])
def test_gradients_of_the_appendix(gamma):
    expected = -((1 - P) ** gamma) / P
    if gamma:
        expected += gamma * (1 - P) ** (gamma - 1) * np.log(P)
    gradient = curve(loss_plots.loss_gradients, FocalLoss(gamma))
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)
    expected = -gamma * (1 + P) ** (gamma - 1) * np.log(P) - (1 + P) ** gamma / P
    gradient = curve(loss_plots.loss_gradients, InverseFocalLoss(gamma))
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore:InverseFocalLoss with gamma")
def test_inverse_focal_gradient_is_positive_in_places_above_gamma_4():
    assert curve(loss_plots.loss_gradients, InverseFocalLoss(5.0)).max() > 0
    assert curve(loss_plots.loss_gradients, InverseFocalLoss(3.5)).max() < 0


def test_gradient_of_fl53_does_not_see_the_jump_of_gamma():
    gradient = curve(loss_plots.loss_gradients, FocalLoss("53"))
    gamma = np.where(P < 0.2, 5, 3)
    expected = gamma * (1 - P) ** (gamma - 1) * np.log(P) - (1 - P) ** gamma / P
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_gradient_of_au_keeps_its_share_of_that_of_the_weight():
    beta = curve(loss_plots.loss_weights, AULoss(smoothing=0.1))
    without = curve(loss_plots.loss_gradients, AULoss(smoothing=0.1))
    np.testing.assert_allclose(without, -beta / P, rtol=1e-3, atol=1e-4)
    k, u = 10, 1 / 10 + 0.9 * (np.arange(1024) + 0.5) / 1024
    tau = np.quantile(u, 0.75)
    rise = reference.soft_cdf_slope(u, P) / (1 - reference.soft_cdf(u, P))
    rise = np.where(tau > P, rise, 0) / reference.soft_cdf(u, tau)
    # Below 1/k another class is on top; at τ there is a corner.
    inside = (1 / k + 0.01 < P) & (np.abs(P - tau) > 0.01)
    for share in (0.5, 1.0):
        gradient = curve(
            loss_plots.loss_gradients, AULoss(smoothing=0.1, weight_gradient=share)
        )
        expected = without - share * rise * np.log(P)
        np.testing.assert_allclose(
            gradient[inside], expected[inside], rtol=5e-3, atol=5e-3
        )
    aurc = curve(loss_plots.loss_gradients, AURCLoss())
    alpha = curve(loss_plots.loss_weights, AURCLoss())
    np.testing.assert_allclose(aurc, -alpha / P, rtol=1e-3, atol=1e-4)


def test_values_of_losses(ax):
    drawn = {"focal": FocalLoss(2.0), "inverse": InverseFocalLoss(2.0)}
    loss_plots.loss_values(drawn, ax=ax)
    weights = {"focal": (1 - P) ** 2, "inverse": (1 + P) ** 2}
    for label, weight in weights.items():
        expected = -weight * np.log(P) / weight.mean()
        np.testing.assert_allclose(line(ax, label).get_ydata(), expected, rtol=1e-4)
        plain = curve(loss_plots.loss_values, drawn[label])
        np.testing.assert_allclose(plain, expected * weight.mean(), rtol=1e-4)


def test_gradients_on_the_samples_of_models():
    drawn = {"focal": FocalLoss(2.0), "AU": AULoss(smoothing=0.1), "AURC": AURCLoss()}
    models = {"first": PROBABILITIES, "second": PROBABILITIES[::-1]}
    axes = loss_plots.sample_gradients(drawn, Y, models)
    assert [ax.get_title() for ax in axes] == ["first", "second"]
    assert axes[0].get_ylim() == axes[1].get_ylim()
    for ax, y_pred in zip(axes, models.values(), strict=True):
        p = y_pred[np.arange(N), Y]
        # As far as 1/4096 tells p apart.
        inside = (p > 0.05) & (p < 0.95)
        assert inside.sum() > 50
        score = y_pred.max(-1)
        tau = np.quantile(score, 0.75)
        beta = -np.log1p(-reference.soft_cdf(score, np.minimum(score, tau)))
        beta /= reference.soft_cdf(score, tau)
        rank = (score[:, None] >= score).mean(-1)
        for label, expected, tolerance in (
            ("focal", 2 * (1 - p) * np.log(p) - (1 - p) ** 2 / p, 0.01),
            ("AU", -beta / p, 0.01),
            ("AURC", np.log1p(-np.minimum(rank, 1 - 1e-9)) / p, 0.1),
        ):
            points = next(x for x in ax.get_lines() if x.get_label() == label)
            np.testing.assert_allclose(points.get_xdata(), p)
            np.testing.assert_allclose(
                points.get_ydata()[inside], expected[inside], rtol=tolerance, atol=0.02
            )
        heights, _, _ = stairs(ax, "samples")
        counts = np.histogram(p, 50, (0, 1))[0]
        np.testing.assert_allclose(heights / heights.sum(), counts / N)
