"""What is trained: beds (data and network) and arms (losses), as tasks."""

from typing import NamedTuple

from recipes.tasks import Task


class Bed(NamedTuple):
    """Data, network, and length of training.

    Args:
        title: name in tables.
        dataset: name of the data set.
        model: name of the network.
        epochs: number of epochs. The weights of the first fifth are never chosen, as in
            the paper.
        seeds: number of seeds that are planned.
        subset: number of training images; None for all.
    """

    title: str
    dataset: str
    model: str
    epochs: int
    seeds: int
    subset: int | None = None


BEDS = {
    "fashion": Bed("Fashion-MNIST, ResNet-8", "fashion-mnist", "resnet8_folded", 6, 5),
    "cifar10": Bed(
        *("CIFAR-10, ResNet-20", "cifar10", "resnet20_folded", 60, 3), subset=10_000
    ),
}

# Half a cosine from 0.1, momentum 0.9 and batches of 128, which are the data sets'
# settings. Keras's weight decay is decoupled from the momentum, so that 0.005 decays
# like the paper's 0.0005, which the momentum multiplies by ten. Gradients are clipped,
# because dual focal loss diverges without it.
PROTOCOL = (
    *("optimizer=sgdw", "schedule=smooth_cosine"),
    *("weight_decay=0.005", "clipnorm=1"),
)


class Arm(NamedTuple):
    """A training: its title, its loss, and changes of settings.

    `copy` is 0, or the number of a further network with the same validation images and
    other initial weights and batches.
    """

    title: str
    loss: str
    set: tuple[str, ...] = ()
    copy: int = 0


_AU = ("loss.csf=msp", "loss.quantile=0.75")
# γ is the paper's for ResNet-50 on CIFAR-10. 0.76 is the paper's ν = 0.1 on the scale
# of this library, `paper_smoothing(0.1, 10)`.
ARMS = {
    "xe": Arm("cross-entropy", "xe"),
    "au": Arm("AU, w = 0, ν = 0.1", "au", (*_AU, "loss.smoothing=0.1")),
    "au_w1": Arm(
        *("AU, w = 1, ν = 0.76", "au"),
        (*_AU, "loss.smoothing=0.76", "loss.weight_gradient=1"),
    ),
    "au_rising": Arm(
        *("AU, w rising to 0.3", "au"),
        (*_AU, "loss.smoothing=0.1", "loss.weight_gradient=0.3"),
    ),
    "au_released": Arm("AU, public code", "au_released", (*_AU, "loss.smoothing=0.1")),
    "dual_focal": Arm(
        "dual focal", "dual_focal", ("loss.gamma=5", "loss.variant=intended")
    ),
    "inv_focal": Arm("inverse focal", "inv_focal", ("loss.gamma=2",)),
    "aurc": Arm("AURC", "aurc", ("loss.csf=msp", "loss.estimator=harmonic")),
}


class Gain(NamedTuple):
    """What may improve a classifier at no cost: its title, its runs, and its score.

    The probabilities of several runs are averaged. `csf` is `"msp"`, or `"auto"` for
    the score that `keras_selcal.csf.choose` finds on the validation images.
    """

    title: str
    runs: tuple[str, ...]
    csf: str = "msp"


GAINS = {
    "xe": Gain("cross-entropy", ("xe",)),
    "xe_auto": Gain("cross-entropy, chosen score", ("xe",), "auto"),
    "xe_ema": Gain("moving average", ("xe_ema",)),
    "xe_smoothed": Gain("label smoothing", ("xe_smoothed",)),
    "xe_smoothed_auto": Gain("label smoothing, chosen score", ("xe_smoothed",), "auto"),
    "ensemble": Gain("ensemble of three", ("xe", "xe_copy1", "xe_copy2")),
}

RUNS = {
    **ARMS,
    "xe_copy1": Arm("cross-entropy, second network", "xe", copy=1),
    "xe_copy2": Arm("cross-entropy, third network", "xe", copy=2),
    # Keras's default momentum.
    "xe_ema": Arm("moving average", "xe", ("ema=0.99",)),
    "xe_smoothed": Arm("label smoothing", "xe_smoothed", ("loss.label_smoothing=0.1",)),
}
# No seed of one network is another network's.
_BETWEEN_COPIES = 1000


def task(
    bed: str, run: str, seed: int, data_dir: str | None, epochs: int | None = None
) -> Task:
    """Returns the task of a run.

    Args:
        bed: name in `BEDS`.
        run: name in `RUNS`.
        seed: decides the validation images, the initial weights and the batches.
        data_dir: folder or file of the data.
        epochs: number of epochs; defaults to that of the bed.
    """
    plan, arm = BEDS[bed], RUNS[run]
    epochs = epochs or plan.epochs
    changes = (*PROTOCOL, *arm.set)
    if run == "au_rising":  # in the second quarter
        changes += (f"weight_gradient_rise={epochs / 4:g},{epochs / 2:g}",)
    return Task(
        *(plan.dataset, plan.model, arm.loss),
        data_dir=data_dir,
        epochs=epochs,
        subset=plan.subset,
        set=changes,
        split_seed=seed,
        seed=seed + _BETWEEN_COPIES * arm.copy,
    )
