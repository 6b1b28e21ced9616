"""Figures of a training: a small network on digits, observed as it trains."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras import ops

from keras_selcal import (
    AULoss,
    FocalLoss,
    InverseFocalLoss,
    csf,
    plots,
)
from recipes import settings
from recipes.data.digits import LABEL_NOISE
from recipes.paper import loss_plots
from recipes.paper.picture import Picture, axes, slug
from recipes.paper.released import DualFocalVariant
from recipes.progress import Progress, console
from recipes.runs import Predictions, Run
from recipes.tasks import Task
from recipes.training import train

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
    task = Task(
        *("digits", "cnn", "xe"),
        epochs=epochs,
        checkpoint_every=epochs,
        snapshots=",".join(map(str, moments)),
    )
    run = Run(folder / task.name)
    with Progress(console(quiet=True)) as progress:
        train(run, task, progress)
    return run


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
        "AU": AULoss(),
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
