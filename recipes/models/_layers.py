"""Layers with PyTorch's arithmetic, named as in PyTorch's state dicts.

A layer `layer1_0_conv1` has the weights `layer1.0.conv1.*` of a state dict, so that
`recipes.models.pretrained` needs no further knowledge of a network.
"""

from typing import Any

from keras import initializers, layers

Tensor = Any


def convolution(
    x: Tensor, filters: int, size: int, name: str, stride: int = 1
) -> Tensor:
    """Applies a convolution without bias, padded by size // 2 on each side."""
    padding = "same"
    if stride > 1:
        # Keras's "same" pads images of even size at the bottom and right only.
        padding = "valid"
        if size > 1:
            x = layers.ZeroPadding2D(size // 2)(x)
    return layers.Conv2D(
        filters,
        size,
        strides=stride,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )(x)


def batch_norm(x: Tensor, name: str) -> Tensor:
    """Applies batch normalisation."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(x)


def batch_norm_relu(x: Tensor, name: str) -> Tensor:
    """Applies batch normalisation and ReLU."""
    return layers.ReLU()(batch_norm(x, name))


def dense(x: Tensor, units: int, name: str, **arguments: Any) -> Tensor:
    """Applies a linear map, initialised as in transformers."""
    # Each layer needs its own: an initializer returns the same values on every call.
    initializer = initializers.TruncatedNormal(stddev=0.02)
    return layers.Dense(units, kernel_initializer=initializer, name=name, **arguments)(
        x
    )


def logits(x: Tensor, num_classes: int, initializer: Any = "he_normal") -> Tensor:
    """Maps features to logits, which are float32 under any dtype policy."""
    return layers.Dense(
        num_classes, kernel_initializer=initializer, dtype="float32", name="head"
    )(x)
