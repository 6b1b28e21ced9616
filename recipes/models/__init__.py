"""The paper's networks and others, by name."""

import pkgutil
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_selcal._validation import check_choice, check_count, refuse
from recipes.models.pretrained import load_pretrained

__all__ = ["NAMES", "STAND_INS", "build", "check_stand_in", "load_pretrained"]

Shape = tuple[int, ...]


class _Builder(NamedTuple):
    """How a network is built.

    Attributes:
        make: module and function, imported when a network is built, as Keras takes
            seconds.
        input_shape: the shape of the images that the network is made for.
        options: arguments of the function.
    """

    make: str
    input_shape: Shape
    options: dict[str, Any]


def _small(make: str, **options: Any) -> _Builder:
    return _Builder(make, (32, 32, 3), options)


def _large(make: str, **options: Any) -> _Builder:
    return _Builder(make, (224, 224, 3), options)


_MODELS = {
    "resnet50": _small("resnet:bottleneck_resnet"),
    "resnet110": _small("resnet:bottleneck_resnet", blocks=(3, 4, 26, 3)),
    "wrn28_10": _small("preresnet:wide_resnet"),
    "preresnet56": _small("preresnet:preresnet", blocks=9, bottleneck=True),
    "vit_small": _large("vit:vit"),
    "swin_tiny": _large("swin:swin"),
    "resnet8": _small("resnet:cifar_resnet", depth=8),
    "resnet8_folded": _Builder(
        "resnet:cifar_resnet", (28, 28, 1), {"depth": 8, "fold": 2}
    ),
    "resnet20": _small("resnet:cifar_resnet", depth=20),
    "resnet20_folded": _small("resnet:cifar_resnet", depth=20, fold=2),
    "resnet56": _small("resnet:cifar_resnet", depth=56),
    "resnet110_basic": _small("resnet:cifar_resnet", depth=110),
    "preresnet56_basic": _small("preresnet:preresnet", blocks=9),
    "wrn28_10_original": _small("preresnet:preresnet", blocks=4, widen=10),
    "keras_cv_resnet50": _large("backbones:keras_cv_resnet", version=1),
    "keras_cv_resnet50_v2": _large("backbones:keras_cv_resnet", version=2),
    "keras_hub_vit_small": _large("backbones:keras_hub_vit", kind="vit"),
    "keras_hub_deit_small": _large("backbones:keras_hub_vit", kind="deit"),
    "keras_hub_swin_tiny": _large("backbones:keras_hub_vit", kind="swin"),
    "cnn": _Builder("small:cnn", (8, 8, 1), {"filters": (32, 64)}),
    "cnn4": _small("small:cnn", filters=(32, 64, 128, 256)),
    "cnn4_narrow": _small("small:cnn", filters=(16, 32, 64, 128)),
    "cnn_strided": _small("small:cnn_strided"),
    "mlp": _Builder("small:mlp", (64,), {}),
}

NAMES = tuple(_MODELS)

# Narrow and shallow networks of the same kind, to try a whole table in a minute, for
# images of 16 × 16 or, with transformers, 28 × 28.
STAND_INS: dict[str, dict[str, Any]] = {
    "resnet50": {"blocks": (1, 1, 1), "width": 4},
    "resnet110": {"blocks": (1, 1, 2), "width": 4},
    "wrn28_10": {"blocks": 1, "widen": 2, "width": 4},
    "preresnet56": {"blocks": 1, "width": 4},
    "vit_small": {"patch": 14, "width": 16, "depth": 2, "heads": 2},
    "swin_tiny": {"width": 16, "depths": (2,), "heads": (2,)},
}


def check_stand_in(name: str) -> dict[str, Any]:
    """Returns the sizes of a stand-in; refuses a network that has none."""
    return STAND_INS[check_choice("model", name, tuple(STAND_INS))]


def build(
    name: str,
    num_classes: int,
    input_shape: Sequence[int] | None = None,
    *,
    preset: str | None = None,
    stand_in: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Builds a network that maps normalised images, channels last, to logits.

    `"mlp"` takes inputs of any shape.

    Args:
        name: one of `NAMES`.
        num_classes: the number of logits.
        input_shape: (height, width, channels). Defaults to the shape of the data that
            the network was designed for.
        preset: for `"keras_cv_*"` and `"keras_hub_*"`: a preset of those libraries to
            take weights from, by name or folder.
        stand_in: whether to build the small network of `STAND_INS` instead.
        dropout: rate of dropout before the last layer.

    Returns:
        A `keras.Model` with logits in float32, and with random weights except for
        those of a preset.

    Example:
    >>> from recipes import models
    >>> models.build("resnet20", num_classes=10).output_shape
    (None, 10)
    """
    model = _MODELS[check_choice("name", name, NAMES)]
    num_classes = check_count("num_classes", num_classes)
    if input_shape is None:
        input_shape = model.input_shape
    if len(input_shape) != 3 and name != "mlp":
        refuse("model", name, f"mlp for inputs of shape {tuple(input_shape)}")
    shape = tuple(check_count("input_shape", n) for n in input_shape)
    chosen = {**model.options, **({} if preset is None else {"preset": preset})}
    if stand_in:
        chosen |= check_stand_in(name)
    make = pkgutil.resolve_name(f"recipes.models.{model.make}")
    network = make(num_classes, shape, **chosen)
    if not dropout:
        return network
    import keras  # takes seconds, which `list` does not need to spend

    head = network.layers[-1]
    dropped = keras.layers.Dropout(dropout)(head.input)
    return keras.Model(network.inputs, head(dropped))
