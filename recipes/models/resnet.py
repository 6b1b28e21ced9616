"""ResNets for images of 32 × 32, with a 3 × 3 stem.

The blocks of KerasCV cannot replace them: its bottleneck has its stride in the first
1 × 1 convolution instead of the 3 × 3 one, it pads on one side, has no zero-padded
shortcut, and cannot be imported without TensorFlow.
"""

from collections.abc import Sequence

import keras
from keras import layers, ops

from recipes.models._layers import (
    Tensor,
    batch_norm,
    batch_norm_relu,
    convolution,
    logits,
)


def cifar_resnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    depth: int,
    width: int = 16,
    fold: int = 1,
) -> keras.Model:
    """The ResNet with 6n + 2 layers that He et al. designed for CIFAR-10.

    It has three stages of n basic blocks with `width`, 2·`width` and 4·`width` filters.
    Where a stage changes the shape, the shortcut takes every second pixel and pads the
    channels with zeros ("option A"), and has no weights.

    ResNet-20 has 0.27 M parameters, ResNet-56 0.85 M and ResNet-110 1.73 M. Note that
    "ResNet-110" is another network in the code of several works on calibration
    (Mukhoti et al., Tao et al., and the paper's own): `bottleneck_resnet` with
    (3, 4, 26, 3) blocks and 45.86 M parameters. Here "resnet110" is that network, and
    "resnet110_basic" is the one of He et al., whom the paper cites.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        depth: 6n + 2.
        width: the number of filters in the first stage.
        fold: each `fold` × `fold` pixels of an image become channels of one, which
            keeps every value and makes the network faster.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - He et al., [Deep Residual Learning for Image
      Recognition](https://arxiv.org/abs/1512.03385), section 4.2
    """
    x = inputs = keras.Input(input_shape)
    if fold > 1:
        height, columns = (side // fold for side in input_shape[:2])
        channels = input_shape[2]
        x = layers.Reshape((height, fold, columns, fold * channels))(x)
        x = layers.Permute((1, 3, 2, 4))(x)
        x = layers.Reshape((height, columns, fold * fold * channels))(x)
    x = batch_norm_relu(convolution(x, width, 3, "conv1"), "bn1")
    for stage in range(3):
        for block in range((depth - 2) // 6):
            name = f"layer{stage + 1}_{block}"
            stride = 2 if stage and not block else 1
            x = _basic(x, width * 2**stage, stride, name)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes))


def bottleneck_resnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
) -> keras.Model:
    """The ResNet with bottlenecks of He et al., with a 3 × 3 stem.

    It has stages of `blocks[i]` bottlenecks with `width`·2ⁱ filters, and four times as
    many at their end. The stem has no stride and no pooling, so that an image of
    32 × 32 ends as 4 × 4. A bottleneck has its stride in the 3 × 3 convolution, as in
    PyTorch. For 10 classes, (3, 4, 6, 3) blocks, ResNet-50, have 23.52 M parameters,
    and (3, 4, 26, 3) blocks, ResNet-110 in the paper's code, have 45.86 M.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        blocks: the number of blocks in each stage.
        width: the number of filters in the first stage.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - He et al., [Deep Residual Learning for Image
      Recognition](https://arxiv.org/abs/1512.03385), table 1
    """
    inputs = keras.Input(input_shape)
    x = batch_norm_relu(convolution(inputs, width, 3, "conv1"), "bn1")
    for stage, count in enumerate(blocks):
        for block in range(count):
            name = f"layer{stage + 1}_{block}"
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, width * 2**stage, stride, name)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes))


def _basic(x: Tensor, filters: int, stride: int, name: str) -> Tensor:
    shortcut = x
    if stride > 1:
        shortcut = layers.AveragePooling2D(1, strides=stride)(shortcut)
    added = filters - x.shape[-1]
    if added:
        channels = (added // 2, added - added // 2)
        shortcut = ops.pad(shortcut, ((0, 0), (0, 0), (0, 0), channels))
    x = convolution(x, filters, 3, f"{name}_conv1", stride)
    x = batch_norm_relu(x, f"{name}_bn1")
    x = convolution(x, filters, 3, f"{name}_conv2")
    x = batch_norm(x, f"{name}_bn2")
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _bottleneck(x: Tensor, filters: int, stride: int, name: str) -> Tensor:
    shortcut = x
    if stride > 1 or x.shape[-1] != 4 * filters:
        shortcut = convolution(x, 4 * filters, 1, f"{name}_shortcut_0", stride)
        shortcut = batch_norm(shortcut, f"{name}_shortcut_1")
    x = convolution(x, filters, 1, f"{name}_conv1")
    x = batch_norm_relu(x, f"{name}_bn1")
    x = convolution(x, filters, 3, f"{name}_conv2", stride)
    x = batch_norm_relu(x, f"{name}_bn2")
    x = convolution(x, 4 * filters, 1, f"{name}_conv3")
    x = batch_norm(x, f"{name}_bn3")
    return layers.ReLU()(layers.Add()([x, shortcut]))
