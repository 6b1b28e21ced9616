"""Figures of the losses, computed from their formulas."""

import warnings

from keras_selcal import (
    AULoss,
    AURCLoss,
    FocalLoss,
    InverseFocalLoss,
)
from keras_selcal.plots import canvas
from keras_selcal.plots import loss_curves as loss_plots
from recipes.paper.picture import Picture, axes
from recipes.paper.released import VARIANTS, DualFocalVariant

# With so many classes the confidence of a sample is p, except for the smallest p.
_MANY = 1000
# Above 1/W(1/e) the gradient of inverse focal loss is positive for some p.
TURN = 3.591


def weight_and_loss() -> Picture:
    """fig:weightandloss: weights and losses against p."""
    drawn = {
        "XE": FocalLoss(0),
        "FL, γ = 2": FocalLoss(2),
        "Inv. FL, γ = 2": InverseFocalLoss(2),
        "AURC": AURCLoss(),
        "AU": AULoss(smoothing=0.1),
    }
    ((left, right),) = axes(1, 2)
    loss_plots.loss_weights(drawn, _MANY, ax=left)
    # The weight of AURC goes to ∞ as p goes to 1, and would flatten the others.
    left.set_ylim(0, 5)
    loss_plots.loss_values(drawn, _MANY, ax=right)
    right.set_ylim(0, 4)
    return Picture(
        "weightandloss",
        "Weights and losses against p",
        "fig:weightandloss. Left: the weight of a sample, normalised to a mean of 1 "
        "over p uniform on (0, 1). The paper normalises the weights of focal and "
        "inverse focal loss, and does not say how. Right: the loss with that weight. "
        "AURC and AU (κ = 0.75, ν = 0.1) weight by rank, here among confidences "
        f"uniform on [1/k, 1] with k = {_MANY}, so that the confidence is p itself "
        f"from p = {1 / _MANY:g} on. Computed from the formulas.",
        left.figure,
    )


def gradient_comparison() -> Picture:
    """fig:gradientcomparison: focal and inverse focal loss, for several γ."""
    ((left, right),) = axes(1, 2)
    focal = {f"γ = {gamma}": FocalLoss(gamma) for gamma in (0, 1, 2, 3, 5)}
    loss_plots.loss_gradients(focal, normalize=False, ax=left)
    with warnings.catch_warnings():
        # InverseFocalLoss warns of the positive gradients that this figure shows.
        warnings.simplefilter("ignore")
        inverse = {f"γ = {gamma}": InverseFocalLoss(gamma) for gamma in range(6)}
        loss_plots.loss_gradients(inverse, normalize=False, ax=right)
    right.set_ylim(bottom=-10)
    left.set_title("focal loss")
    right.set_title("inverse focal loss")
    return Picture(
        "gradientcomparison",
        "Gradients of focal and inverse focal loss",
        "fig:gradientcomparison. ∂ℓ/∂p of the true class. The gradient of focal loss "
        "goes to 0 as p goes to 1. The gradient of inverse focal loss does not, and it "
        f"is positive for some p if γ is above 1/W(1/e) = {TURN} (the paper's text "
        "says 3.5, its appendix 4). Computed from the losses, as by "
        "`keras_selcal.losses.analysis.loss_curve`.",
        left.figure,
    )


def dual_focal() -> Picture:
    """fig:randomdataDFL: dual focal loss where a sample is misclassified."""
    gamma, k, rival = 2, 3, 0.7
    drawn = {f'"{variant}"': DualFocalVariant(gamma, variant) for variant in VARIANTS}
    ((left, right),) = axes(1, 2)
    drawn_by = (left, loss_plots.loss_weights), (right, loss_plots.loss_gradients)
    for ax, draw in drawn_by:
        end = rival / (1 + rival)
        ax.axvspan(
            0, end, color=canvas.PALE, alpha=0.4, lw=0, zorder=0, label="misclassified"
        )
        draw(drawn, k, normalize=False, rival=rival, ax=ax)
    return Picture(
        "randomdataDFL",
        "Dual focal loss on misclassified samples",
        f"fig:randomdataDFL. Weight and gradient of dual focal loss (γ = {gamma}) "
        f"against p of the true class, one of {k}. A second class has {rival:g} of the "
        "remaining probability; the sample is misclassified where the figure is "
        'shaded. Of the three variants, "intended" is the formula, '
        '"discarded" is how the paper describes the authors\' code, and "released" is '
        "what that code computes: it weights by the largest probability below p, which "
        "here belongs to the third class as long as p is between the other two. "
        "Computed from the losses.",
        left.figure,
    )
