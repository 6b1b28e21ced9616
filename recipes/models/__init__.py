"""The paper's networks and others, by name."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras

from keras_selcal._core.validation import check_choice, check_count, refuse
from recipes.models import backbones, preresnet, resnet, small, swin, vit
from recipes.models.pretrained import load_pretrained

__all__ = ["NAMES", "STAND_INS", "build", "load_pretrained"]

Shape = tuple[int, int, int]


class _Builder(NamedTuple):
    """A function that builds a network, and the shape of the images it is made for."""

    make: Callable[..., keras.Model]
    input_shape: Shape


_CIFAR, _IMAGENET = (32, 32, 3), (224, 224, 3)

_MODELS = {
    "resnet50": _Builder(resnet.bottleneck_resnet, _CIFAR),
    "resnet110": _Builder(
        partial(resnet.bottleneck_resnet, blocks=(3, 4, 26, 3)), _CIFAR
    ),
    "wrn28_10": _Builder(partial(preresnet.preresnet, blocks=4, widen=10), _CIFAR),
    "preresnet56": _Builder(
        partial(preresnet.preresnet, blocks=9, bottleneck=True), _CIFAR
    ),
    "vit_small": _Builder(vit.vit, _IMAGENET),
    "swin_tiny": _Builder(swin.swin, _IMAGENET),
    "resnet8": _Builder(partial(resnet.cifar_resnet, depth=8), _CIFAR),
    "resnet20": _Builder(partial(resnet.cifar_resnet, depth=20), _CIFAR),
    "resnet56": _Builder(partial(resnet.cifar_resnet, depth=56), _CIFAR),
    "resnet110_basic": _Builder(partial(resnet.cifar_resnet, depth=110), _CIFAR),
    "preresnet56_basic": _Builder(partial(preresnet.preresnet, blocks=9), _CIFAR),
    "keras_cv_resnet50": _Builder(
        partial(backbones.keras_cv_resnet, version=1), _IMAGENET
    ),
    "keras_cv_resnet50_v2": _Builder(
        partial(backbones.keras_cv_resnet, version=2), _IMAGENET
    ),
    "keras_hub_vit_small": _Builder(
        partial(backbones.keras_hub_vit, kind="vit"), _IMAGENET
    ),
    "keras_hub_deit_small": _Builder(
        partial(backbones.keras_hub_vit, kind="deit"), _IMAGENET
    ),
    "keras_hub_swin_tiny": _Builder(
        partial(backbones.keras_hub_vit, kind="swin"), _IMAGENET
    ),
    "cnn": _Builder(partial(small.cnn, filters=(32, 64)), (8, 8, 1)),
    "cnn4": _Builder(partial(small.cnn, filters=(32, 64, 128, 256)), _CIFAR),
    "cnn4_narrow": _Builder(partial(small.cnn, filters=(16, 32, 64, 128)), _CIFAR),
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


def build(
    name: str,
    num_classes: int,
    input_shape: Sequence[int] | None = None,
    *,
    preset: str | None = None,
    stand_in: bool = False,
) -> keras.Model:
    """Builds a network that maps normalised images, channels last, to logits.

    Args:
        name: one of `NAMES`.
        num_classes: the number of logits.
        input_shape: (height, width, channels). Defaults to the shape of the data that
            the network was designed for.
        preset: for `"keras_cv_*"` and `"keras_hub_*"`: a preset of those libraries to
            take weights from, by name or folder.
        stand_in: whether to build the small network of `STAND_INS` instead.

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
    if len(input_shape) != 3:
        refuse("input_shape", input_shape, "(height, width, channels)")
    height, width, channels = (check_count("input_shape", n) for n in input_shape)
    chosen: dict[str, Any] = {} if preset is None else {"preset": preset}
    if stand_in:
        chosen |= STAND_INS[check_choice("name", name, tuple(STAND_INS))]
    return model.make(num_classes, (height, width, channels), **chosen)
