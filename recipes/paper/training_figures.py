"""Figures of a training: a small network on digits, observed as it trains."""

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_selcal import (
    AULoss,
    FocalLoss,
    InverseFocalLoss,
    csf,
    plots,
)
from keras_selcal._backend.ops import gradient
from keras_selcal.plots import loss_curves as loss_plots
from recipes import settings
from recipes.data.digits import LABEL_NOISE
from recipes.paper.picture import Picture, axes, slug
from recipes.paper.released import DualFocalVariant
from recipes.runs import Predictions, Run
from recipes.tasks import Task
from recipes.training import trained

# Shares of the training after which the gradients are shown. The first is early, while
# the predictions still change.
_MOMENTS = (0.1, 0.3, 1.0)


def example(folder: Path, epochs: int | None = None) -> Run:
    """Returns a run of the small network on digits with cross-entropy, with snapshots.

    Args:
        folder: where to make it, unless it is there.
        epochs: number of epochs. Defaults to that of the settings.
    """
    epochs = epochs or settings.settings("digits", "cnn", "xe").epochs
    moments = sorted({max(1, round(moment * epochs)) for moment in _MOMENTS})
    options: Any = {
        "checkpoint_every": epochs,
        "snapshots": ",".join(map(str, moments)),
    }
    return trained(folder, Task("digits", "cnn", "xe", epochs=epochs, **options))


def _trained(run: Run) -> str:
    return (
        f"cross-entropy on digits with {100 * LABEL_NOISE:g} % of the labels wrong "
        f"({len(run.history())} epochs, the default settings, seed 0)"
    )


def gradients_of_runs(runs: Iterable[Run]) -> Iterator[Picture]:
    """fig:gradients_over_epochs of runs that were trained with `--snapshots`."""
    for run in runs:
        if found := run.snapshots():
            labels = next(iter(found.values())).labels
            yield Picture(
                f"gradients_over_epochs-{slug(run.name)}",
                f"Evolution of the gradient, {run.name}",
                "fig:gradients_over_epochs, of our run: ∂ℓ/∂p of the true class on "
                f"{len(labels)} training images of one network as it trains.",
                _gradients(found),
            )


def gradients_over_epochs(run: Run) -> Picture:
    """fig:gradients_over_epochs: gradients of several losses on a model's samples."""
    return Picture(
        "gradients_over_epochs",
        "Evolution of the gradient during training",
        "fig:gradients_over_epochs. ∂ℓ/∂p of the true class, on the training samples "
        "of one network as it trains; each sample is a point for each loss. The paper "
        "shows a ResNet and 20,000 samples of CIFAR-10 at epochs 40, 120 and 200 of "
        f"200. This is the small network, trained with {_trained(run)}; it is "
        "shown at earlier epochs because it soon memorises all samples. Dual is the "
        'variant "released"; AU (κ = 0.75, ν = 0.1) ranks all samples together.',
        _gradients(run.snapshots()),
    )


def _gradients(snapshots: dict[int, Predictions]) -> Any:
    drawn = {
        "XE": FocalLoss(0),
        "FL, γ = 3": FocalLoss(3),
        "Inv. FL, γ = 2": InverseFocalLoss(2),
        "Dual, γ = 5": DualFocalVariant(5),
        "AU": AULoss(smoothing=0.1),
    }
    (panels,) = axes(1, len(snapshots), 4.6, 4.6)
    named = {f"epoch {epoch}": found.logits for epoch, found in snapshots.items()}
    labels = next(iter(snapshots.values())).labels
    loss_plots.sample_gradients(drawn, labels, named, from_logits=True, ax=panels)
    for ax in panels[:-1]:
        ax.get_legend().remove()
    for ax in panels[1:]:
        ax.set_ylabel("")
    return panels[0].figure


def gradient_by_nu(run: Run) -> Picture:
    """fig:nuselection (b): the size of AU's gradient by κ and ν."""
    logits, labels = run.predictions("test")
    z = ops.convert_to_tensor(logits)
    values = (0.01, 0.03, 0.1, 0.3, 1.0)
    ((ax,),) = axes(1, 1, 6.4, 4.6)
    for kappa in (0.25, 0.5, 0.75, 1.0):
        sizes = []
        for nu in values:
            options: Any = {"quantile": kappa, "smoothing": nu, "weight_gradient": 1.0}
            loss = AULoss(**options, from_logits=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the drag that this figure shows
                found = _slopes(loss, labels, z)
            each = np.abs(found).sum(-1)
            sizes.append(len(labels) * each.mean())
        ax.plot(values, sizes, "o-", label=f"κ = {kappa:g}")
    ax.set_xscale("log")
    ax.set_xlabel("ν")
    ax.set_ylabel("mean Σ|∂ℓ/∂z| of a sample")
    ax.legend()
    return Picture(
        "nuselection_gradient",
        "The size of AU's gradient",
        "fig:nuselection_gradient, panel (b) of the paper's fig:nuselection: the "
        "gradient of AU by ν and κ. The paper does not say what its panel measures; "
        "this is the mean over samples of Σ|∂ℓ/∂z|, with the printed gradient (w = 1), "
        f"on {len(labels)} test images of the small network, trained with "
        f"{_trained(run)}.",
        ax.figure,
    )


def _slopes(loss: Any, labels: Any, z: Any) -> np.ndarray:
    found, _ = gradient(lambda z: (loss(labels, z), ()), z)
    return np.asarray(ops.convert_to_numpy(found))


def smoothing(run: Run) -> Picture:
    """fig:smoothparameter: the soft CDF over a histogram of scores."""
    logits, _ = run.predictions("test")
    scores = ops.convert_to_numpy(csf.msp(ops.softmax(logits)))
    support = csf.get("msp").support(logits.shape[-1])
    ((ax,),) = axes(1, 1, 6.4, 4.6)
    plots.score_cdf(scores, (0.01, 0.1, 1.0), support=support, ax=ax)
    return Picture(
        "smoothparameter",
        "The soft CDF",
        "fig:smoothparameter. Soft CDF for ν = 0.01, 0.1 and 1 over the histogram of "
        f"the scores (msp, whose support is [0, 1]) of {len(scores)} test images. The "
        f"scores are those of the small network, trained with {_trained(run)}.",
        ax.figure,
    )
