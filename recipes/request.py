"""What a user asks for: the options of `python -m recipes train`."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

# Integers of at least 0 or 1, as the command line reads them.
Count = Annotated[int, 0]
Positive = Annotated[int, 1]


Engine = Literal["local", "ray"]
ENGINES = get_args(Engine)


class RunError(Exception):
    """An error the user can fix; it is shown in one line, without a traceback."""


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
        jobs: runs at a time; they share the processors (default: 1, or with ray the
            number of CPUs of the cluster).
        engine: processes on this machine, or a Ray cluster.
    """

    jobs: Positive | None = None
    engine: Engine = "local"


@dataclass(frozen=True)
class Request:
    """A task as a user asks for it: what is None comes from the paper's settings.

    Args:
        dataset: cifar10, cifar100, tiny-imagenet, digits, or folder:PATH with a folder
            of images for each class.
        model: a name that `list` shows.
        loss: xe, fl53, inv_focal, dual_focal, kde_xe, aurc or au, or a released one.
        csf: confidence score of au and aurc: msp, margin or neg_entropy.
        data_dir: path of the data set, a folder or a file.
        epochs: length of the training; 0 evaluates the weights to start from.
        batch_size: number of images in a step.
        set: change a setting, such as loss.smoothing=0.3; may be repeated.
        pretrained: file of weights to start from, as timm saves them.
        preset: weights of KerasCV or KerasHub to start a keras_* model from, by name or
            folder, such as resnet50_imagenet.
        from_scratch: start vit_small or swin_tiny from random weights; the paper
            fine-tunes pretrained ones.
        stand_in: train a narrow and shallow network of the same kind, to try things.
        subset: train on N images, drawn by class and always the same.
        label_noise: share of wrong labels in digits.
        checkpoint_every: epochs between checkpoints.
        snapshots: keep the logits of training images after these epochs, such as
            40,120,200: `figures` draws their gradients.
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
    seed: Count = 0

    def changes(self) -> dict[str, str]:
        """Returns the values of `set` by their names."""
        return dict(change.partition("=")[::2] for change in self.set)

    def arguments(self) -> tuple[str, ...]:
        """Returns the arguments of `python -m recipes train`.

        Example:
        >>> Request("digits", "cnn", "au", set=("loss.smoothing=1",)).arguments()[-2:]
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
