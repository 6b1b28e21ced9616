"""The backbones of KerasCV and KerasHub with a classifier on top, for larger images.

KerasCV has the ResNets, without a ViT that works outside of TensorFlow; its maintainers
have merged it into KerasHub, which has ViT, DeiT and Swin.
"""

import importlib
from typing import Any

import keras
from keras import layers, ops

from recipes.models._layers import logits

Shape = tuple[int, int, int]

_RESNET50 = {
    "stackwise_filters": [64, 128, 256, 512],
    "stackwise_blocks": [3, 4, 6, 3],
    "stackwise_strides": [1, 2, 2, 2],
}
_SMALL_VIT = {"patch_size": 16, "num_layers": 12, "num_heads": 6, "hidden_dim": 384}
_TINY_SWIN = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}


def keras_cv_resnet(
    num_classes: int, input_shape: Shape, *, version: int, preset: str | None = None
) -> keras.Model:
    """ResNet-50 of KerasCV, whose 7 × 7 stem has stride 2 and is followed by pooling.

    The model consists of Keras's own layers: a saved one loads without KerasCV. Its
    batch normalisation averages over 10 steps instead of KerasCV's 100, and with random
    weights every residual branch starts at 0 (Goyal et al.). Otherwise a short training
    is evaluated with statistics that belong to no network: sixteen branches multiply
    the error, and after five steps the logits are infinite.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        version: 1 for `ResNetBackbone`, 2 for `ResNetV2Backbone`.
        preset: weights to start from: a preset of KerasCV such as
            `"resnet50_imagenet"`, or a folder. None for random ones.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - He et al., [Deep Residual Learning for Image
      Recognition](https://arxiv.org/abs/1512.03385)
    - He et al., [Identity Mappings in Deep Residual
      Networks](https://arxiv.org/abs/1603.05027)
    - Goyal et al., [Accurate, Large Minibatch SGD](https://arxiv.org/abs/1706.02677),
      section 5.1
    """
    name = "ResNetBackbone" if version == 1 else "ResNetV2Backbone"
    options = {"include_rescaling": False, "input_shape": input_shape}
    features = _backbone("keras_cv", name, preset, _RESNET50, options)
    # The last layer of a branch scales it: a normalisation, in version 2 a convolution.
    last, scale = ("_3_bn", "gamma") if version == 1 else ("_3_conv", "kernel")
    for layer in features.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.9
        if preset is None and layer.name.endswith(last):
            weight = getattr(layer, scale)
            weight.assign(ops.zeros(weight.shape, weight.dtype))
    x = layers.GlobalAveragePooling2D()(features.output)
    return keras.Model(features.inputs, logits(x, num_classes))


def keras_hub_vit(
    num_classes: int, input_shape: Shape, *, kind: str, preset: str | None = None
) -> keras.Model:
    """ViT-Small, DeiT-Small or Swin-Tiny of KerasHub.

    The logits are computed from the class token of ViT and DeiT, and from the mean over
    the tokens of Swin. A saved model needs KerasHub to be loaded.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        kind: `"vit"`, `"deit"` or `"swin"`.
        preset: weights to start from: a preset of KerasHub such as
            `"swin_tiny_patch4_window7_224"`, or a folder. None for random ones.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - Dosovitskiy et al., [An Image is Worth 16x16
      Words](https://arxiv.org/abs/2010.11929)
    - Touvron et al., [Training data-efficient image transformers & distillation through
      attention](https://arxiv.org/abs/2012.12877)
    - Liu et al., [Swin Transformer](https://arxiv.org/abs/2103.14030)
    """
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "vit": ("ViTBackbone", {**_SMALL_VIT, "mlp_dim": 1536}),
        "deit": ("DeiTBackbone", {**_SMALL_VIT, "intermediate_dim": 1536}),
        "swin": ("SwinTransformerBackbone", {**_TINY_SWIN, "window_size": 7}),
    }
    name, sizes = kinds[kind]
    options = {"image_shape": input_shape}
    features = _backbone("keras_hub", name, preset, sizes, options)
    tokens = features.output
    x = layers.GlobalAveragePooling1D()(tokens) if kind == "swin" else tokens[:, 0]
    return keras.Model(features.inputs, logits(x, num_classes))


def _backbone(
    package: str,
    name: str,
    preset: str | None,
    sizes: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """Returns a backbone with random weights, or that of a preset."""
    try:
        kind = getattr(importlib.import_module(package).models, name)
    except ImportError as error:
        # KerasCV imports TensorFlow on every backend.
        needed = "keras-cv tensorflow" if package == "keras_cv" else "keras-hub"
        raise ImportError(
            f"The models {package}_* require `pip install {needed}` ({error})"
        ) from error
    if preset is None:
        return kind(**sizes, **options)
    try:
        return kind.from_preset(preset, **options)
    except Exception as error:  # of the library, of its downloader or of the network
        raise ValueError(
            f"`preset` must be a folder, or the name of a preset of {package} that is "
            f"on this machine or can be downloaded. Received: preset={preset!r}"
        ) from error
