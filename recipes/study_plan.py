"""The experiments of STUDY.md."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from recipes.losses import NAMES
from recipes.settings import CSFS

SEEDS = (0, 1, 2)
SMOOTHINGS = (0.02, 0.05, 0.1, 0.3, 1.0)
WEIGHT_GRADIENTS = (0.0, 0.1, 0.3, 1.0)
# ν, w, and whether w rises, of AU: the defaults, and candidates from the map of ν and w
# to replace them.
CHOICES = (
    (0.1, 0.0, False),
    (1.0, 0.0, False),
    (0.1, 0.1, False),
    (0.3, 0.1, False),
    (1.0, 0.1, False),
    (1.0, 0.3, False),
    (0.1, 0.3, True),
)
# Beds on which they are compared.
COMPARED = ("digits", "scratch")
# Losses of the longest runs.
LONG = ("xe", "fl53", "dual_focal", "aurc", "au")


@dataclass(frozen=True)
class Bed:
    """A test bed: what is trained, and how.

    Args:
        arguments: arguments of `python -m recipes train`.
        rise: epochs between which a rising weight gradient rises, from a quarter to a
            half of the training.
    """

    arguments: tuple[str, ...]
    rise: tuple[int, int] | None = None


def _from_scratch(epochs: int) -> tuple[str, ...]:
    # The last epoch counts: choosing by the validation value of each loss would stop
    # the losses at different times.
    return (
        *("--dataset", "cifar10", "--model", "cnn4_narrow", "--subset", "5000"),
        *("--epochs", str(epochs), "--set", f"validate_every={epochs}"),
        *("--set", "augmentation=none"),
    )


BEDS = {
    # A network that overfits within minutes on one core.
    "scratch": Bed(_from_scratch(20), rise=(5, 10)),
    # Losses that lower the weights of samples learn slowly.
    "long": Bed(_from_scratch(60), rise=(15, 30)),
    # The quickstart, except that the last epoch counts: data with wrong labels.
    "digits": Bed(
        ("--dataset", "digits", "--model", "cnn", "--set", "validate_every=60"),
        rise=(15, 30),
    ),
    # The paper's post-hoc use: training of a trained network continues.
    "finetune": Bed(
        (
            *("--dataset", "cifar10", "--model", "resnet20", "--subset", "5000"),
            *("--epochs", "3", "--set", "validate_every=3"),
            *("--set", "schedule=cosine", "--set", "learning_rate=0.01"),
        ),
    ),
}


@dataclass(frozen=True)
class Experiment:
    """One run of the study.

    Args:
        bed: a key of `BEDS`.
        loss: one of `recipes.losses.NAMES`.
        csf: confidence score of the AU loss.
        smoothing: ν of the AU loss.
        weight_gradient: w of the AU loss.
        rises: whether w rises from 0, between the epochs of the bed.
        seed: seed of the run.
    """

    bed: str
    loss: str
    csf: str = "msp"
    smoothing: float = 0.1
    weight_gradient: float = 0.0
    rises: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the run's folder, with what differs from the defaults of the loss."""
        parts = [self.bed, self.loss]
        for field in dataclasses.fields(self)[2:-1]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(field.name if value is True else f"{field.name}{value}")
        return "-".join([*parts, f"seed{self.seed}"])

    @property
    def arguments(self) -> list[str]:
        """Arguments of `python -m recipes train`, except folders and files."""
        bed = BEDS[self.bed]
        arguments = [*bed.arguments, "--loss", self.loss]
        if self.loss == "au":
            arguments += ["--csf", self.csf]
            arguments += ["--set", f"loss.weight_gradient={self.weight_gradient:g}"]
            arguments += ["--set", f"loss.smoothing={self.smoothing:g}"]
        if self.rises and bed.rise:
            first, last = bed.rise
            arguments += ["--set", f"weight_gradient_rise={first},{last}"]
        return [*arguments, "--seed", str(self.seed)]


def experiments() -> list[Experiment]:
    """Returns the runs of the study, the most informative ones first."""
    return list(dict.fromkeys(_experiments()))


def _experiments() -> Iterator[Experiment]:
    for seed in SEEDS:
        for loss in NAMES:
            yield Experiment("scratch", loss, seed=seed)
        for csf in CSFS[1:]:
            yield Experiment("scratch", "au", csf=csf, seed=seed)
    for w in WEIGHT_GRADIENTS:
        for nu in SMOOTHINGS:
            yield Experiment("scratch", "au", smoothing=nu, weight_gradient=w)
    yield from rising()
    for loss in LONG:
        yield Experiment("long", loss)
    for loss in ("xe", "au"):
        yield Experiment("long", loss, seed=1)
    yield Experiment("long", "au", weight_gradient=0.3, rises=True)
    for loss in NAMES:
        yield Experiment("finetune", loss)
    for seed in SEEDS:
        for loss in NAMES:
            yield Experiment("digits", loss, seed=seed)
    for bed in COMPARED:
        for seed in SEEDS:
            for choice in CHOICES:
                yield Experiment(bed, "au", "msp", *choice, seed)


def rising() -> list[Experiment]:
    """Returns the runs of the table of rising weight gradients."""
    return [
        Experiment("scratch", "au", "msp", nu, w, rises=True)
        for w in WEIGHT_GRADIENTS[2:]
        for nu in (0.1, 0.3)
    ]
