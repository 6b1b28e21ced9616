"""A task: what a run is to do, as the options of `python -m recipes train` say it.

Keras takes seconds to import, and NumPy a fraction of one: both are imported where they
are needed, so that `--help` is quick.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from recipes.settings import Settings

# Integers of at least 0 or 1, as the command line reads them.
Count = Annotated[int, 0]
Positive = Annotated[int, 1]

_BACKENDS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "torch": ("torch",)}


class RunError(Exception):
    """An error the user can fix; it is shown in one line, without a traceback."""


class DivergenceError(RunError):
    """A training whose loss or logits are not finite."""


def names_in(option: str, text: str | None) -> tuple[str, ...]:
    """Returns the names in an option, which are separated by commas.

    Example:
    >>> names_in("losses", "xe, au")
    ('xe', 'au')
    """
    names = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise RunError(
            f"`{option}` must be names separated by commas. Received: {text!r}"
        )
    return names


@dataclass(frozen=True)
class Pool:
    """Where runs are trained.

    Args:
        jobs: runs at a time. One is trained in this process; more need Ray, which uses
            the cluster at RAY_ADDRESS or else this machine.
        gpus_per_run: GPUs of each run on Ray.
    """

    jobs: Positive = 1
    gpus_per_run: float = 0.0


@dataclass(frozen=True)
class Task:
    """What to train: what is None comes from the paper's settings.

    Args:
        dataset: cifar10, cifar100, tiny-imagenet, fashion-mnist, digits; or your own:
            folder:PATH with a folder of images for each class, npz:PATH with arrays x
            and y, or text:PATH, a CSV file with columns text and label.
        model: a name that `list` shows.
        loss: a name that `list` shows, or module:Name for one of your own.
        csf: confidence score of au and aurc: msp, margin or neg_entropy.
        data_dir: path of the data set, a folder or a file.
        epochs: length of the training; 0 evaluates the weights to start from.
        batch_size: number of samples in a step.
        set: change a setting, such as loss.smoothing=0.3; may be repeated.
        pretrained: file of weights to start from, as timm saves them.
        preset: weights of KerasCV or KerasHub to start a keras_* model from, by name or
            folder, such as resnet50_imagenet.
        from_scratch: start vit_small or swin_tiny from random weights; the paper
            fine-tunes pretrained ones.
        stand_in: train a narrow and shallow network of the same kind, to try things.
        subset: train on N samples, drawn by class and always the same.
        label_noise: share of wrong labels in digits.
        checkpoint_every: epochs between checkpoints.
        snapshots: keep the logits of training images after these epochs, such as
            40,120,200: `figures` draws their gradients.
        split_seed: seed of the validation samples, where they are held out.
        seed: seed of weights, order, augmentation and dropout.
    """

    dataset: str
    model: str
    loss: str
    csf: str | None = None
    data_dir: str | None = None
    epochs: Count | None = None
    batch_size: Positive | None = None
    set: tuple[str, ...] = ()
    pretrained: str | None = None
    preset: str | None = None
    from_scratch: bool = False
    stand_in: bool = False
    subset: Positive | None = None
    label_noise: float | None = None
    checkpoint_every: Positive = 1
    snapshots: str | None = None
    split_seed: Count = 0
    seed: Count = 0

    @functools.cached_property
    def settings(self) -> "Settings":
        """All settings of the training: the paper's, and what the task changes.

        Example:
        >>> Task("cifar10", "resnet50", "au").settings.loss["smoothing"]
        0.1
        """
        from recipes import models, settings

        self._check_start()
        try:
            chosen = settings.settings(
                self.dataset,
                self.model,
                self.loss,
                csf=self.csf,
                weight_gradient=self.changes().get("loss.weight_gradient", "0"),
                from_scratch=self.from_scratch,
            )
            if self.csf is not None and "csf" not in chosen.loss:
                raise RunError(f"`csf` is for the losses au and aurc, not {self.loss}.")
            if self.epochs is not None:
                chosen = settings.with_epochs(chosen, self.epochs)
            for key, value in self.changes().items():
                chosen = settings.override(chosen, key, value)
            if self.batch_size is not None:
                chosen = dataclasses.replace(chosen, batch_size=self.batch_size)
            if self.stand_in:
                models.check_stand_in(self.model)
                source = f"{chosen.source}; a small stand-in for the network"
                chosen = dataclasses.replace(chosen, source=source)
        except ValueError as error:
            raise RunError(str(error)) from error
        if self.label_noise is not None and self.dataset != "digits":
            raise RunError(f"`label-noise` is for digits, not {self.dataset}.")
        self.snapshot_epochs()
        return chosen

    def _check_start(self) -> None:
        from recipes.settings import TRANSFORMERS

        starts = (self.from_scratch, self.pretrained, self.preset)
        if sum(map(bool, starts)) > 1:
            names = "--pretrained, --preset and --from-scratch"
            raise RunError(f"pass at most one of {names}.")
        if self.stand_in and (self.pretrained or self.preset):
            raise RunError("a stand-in has no pretrained weights.")
        if self.preset is not None and not self.model.startswith("keras_"):
            raise RunError(f"`preset` is for keras_cv_* and keras_hub_*: {self.model}.")
        start = self.from_scratch or self.pretrained is not None
        if self.model in TRANSFORMERS and not start:
            raise RunError(fine_tuned(self.model, "FILE"))

    def changes(self) -> dict[str, str]:
        """Returns the values of `set` by their names."""
        return dict(change.partition("=")[::2] for change in self.set)

    def snapshot_epochs(self) -> tuple[int, ...]:
        """Returns the epochs after which the logits of training images are kept."""
        epochs = names_in("snapshots", self.snapshots)
        if not all(map(str.isdecimal, epochs)):
            raise RunError(f"`snapshots` must be epochs. Received: {self.snapshots!r}")
        return tuple(map(int, epochs))

    @property
    def noise(self) -> float | None:
        """The share of wrong labels, or None for data without such noise."""
        from recipes.data.digits import LABEL_NOISE

        if self.dataset == "digits" and self.label_noise is None:
            return LABEL_NOISE
        return self.label_noise

    @property
    def name(self) -> str:
        """The name of the run's folder.

        Example:
        >>> Task("cifar10", "resnet50", "au", epochs=20).name
        'cifar10-resnet50-au-msp-seed0-epochs20'
        """
        from recipes.data.digits import LABEL_NOISE

        dataset = self.dataset
        if ":" in dataset:
            dataset = os.path.basename(os.path.normpath(dataset.partition(":")[2]))
        csf = self.settings.loss.get("csf")
        parts = [dataset, self.model, self.loss, *([csf] if csf else [])]
        parts.append(f"seed{self.seed}")
        changed: dict[str, Any] = {
            **{key.rpartition(".")[2]: v for key, v in self.changes().items()},
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "subset": self.subset,
            "noise": None if self.noise == LABEL_NOISE else self.noise,
            "split": self.split_seed or None,
        }
        parts += [
            f"{key}{value}" for key, value in changed.items() if value is not None
        ]
        if self.pretrained is not None:
            parts.append("pretrained")
        if self.preset is not None:
            parts.append(os.path.basename(os.path.normpath(self.preset)))
        if self.stand_in:
            parts.append("stand_in")
        name = "-".join(map(str, parts))
        return "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)

    def config(self) -> dict[str, Any]:
        """Returns all that the run depends on, except for the data itself."""
        import keras

        pretrained = None if self.pretrained is None else _file_digest(self.pretrained)
        return {
            "dataset": self.dataset,
            "label_noise": self.noise,
            "subset": self.subset,
            **({"split_seed": self.split_seed} if self.split_seed else {}),
            "model": self.model,
            "pretrained": pretrained,
            **({} if self.preset is None else {"preset": self.preset}),
            **({"stand_in": True} if self.stand_in else {}),
            "loss": self.loss,
            "seed": self.seed,
            "settings": dataclasses.asdict(self.settings),
            "dtype": keras.config.dtype_policy().name,
            "backend": keras.backend.backend(),
            "versions": versions(),
        }

    def arguments(self) -> tuple[str, ...]:
        """Returns the arguments of `python -m recipes train`.

        Example:
        >>> Task("digits", "cnn", "au", set=("loss.smoothing=1",)).arguments()[-2:]
        ('--set', 'loss.smoothing=1')
        """
        found: list[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("dataset", "model", "loss") or value != field.default:
                option = f"--{field.name.replace('_', '-')}"
                values = value if isinstance(value, tuple) else (value,)
                for one in values:
                    found += [option] if one is True else [option, str(one)]
        return tuple(found)


def fine_tuned(model: str, form: str) -> str:
    """Returns why a transformer cannot start; `form` is the value of --pretrained."""
    return (
        f"the paper fine-tunes {model}: pass its pretrained weights by --pretrained "
        f"{form}, or --from-scratch to start from random weights."
    )


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that results depend on."""
    import keras

    import keras_selcal

    backend = keras.backend.backend()
    packages = ("keras", "numpy", *_BACKENDS.get(backend, (backend, "jaxlib")))
    found = {"keras_selcal": keras_selcal.__version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _file_digest(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}.") from error
    return {"file": Path(path).name, "sha256": digest.hexdigest()}
