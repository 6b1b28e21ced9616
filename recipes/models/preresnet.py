"""Residual networks with pre-activation: PreResNets and Wide ResNets."""

import keras
from keras import layers

from recipes.models._layers import Tensor, batch_norm_relu, convolution, logits


def preresnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    blocks: int,
    bottleneck: bool = False,
    widen: int = 1,
    width: int = 16,
) -> keras.Model:
    """A pre-activation ResNet for images of 32 × 32.

    It has a 3 × 3 stem with `width` filters, three stages of `blocks` blocks with 1, 2
    and 4 times `width`·`widen` filters, and a last batch normalisation and ReLU. Where
    a block changes the shape, its shortcut is a 1 × 1 convolution.

    In basic blocks, the shortcut of a stage's first block starts after the first
    activation. Bottlenecks end with four times as many filters, and all their shortcuts
    start before the first activation, as in the PyTorch code that calls a network with
    nine bottlenecks a stage PreResNet-56.

    | network                     | blocks        | parameters |
    |-----------------------------|---------------|------------|
    | PreResNet-56, as released   | 9 bottlenecks |     0.87 M |
    | PreResNet-56 of He et al.   | 9 basic       |     0.86 M |
    | WRN-28-10, without dropout  | 4 basic       |    36.48 M |

    WRN-28-10 is that of Zagoruyko and Komodakis, whom the paper cites. The one of the
    public code is `wide_resnet`.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        blocks: the number of blocks in each stage.
        bottleneck: whether the blocks are bottlenecks.
        widen: the factor of a Wide ResNet.
        width: the number of filters in the stem.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - He et al., [Identity Mappings in Deep Residual
      Networks](https://arxiv.org/abs/1603.05027)
    - Zagoruyko and Komodakis, [Wide Residual
      Networks](https://arxiv.org/abs/1605.07146)
    """
    inputs = keras.Input(input_shape)
    x = convolution(inputs, width, 3, "conv1")
    make = _bottleneck if bottleneck else _basic
    for stage in range(3):
        for block in range(blocks):
            name = f"layer{stage + 1}_{block}"
            x = make(x, width * widen * 2**stage, stage, block, name)
    x = batch_norm_relu(x, "bn")
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes))


def wide_resnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    blocks: int = 4,
    widen: int = 10,
    width: int = 16,
) -> keras.Model:
    """The Wide ResNet of the paper's public code, without dropout.

    It differs from that of Zagoruyko and Komodakis: convolutions have biases, the
    stride is in a block's second convolution, every shortcut starts before the
    activation, and the last normalisation has PyTorch's momentum of 0.9, which forgets
    9/10 of its statistics in each step. Initial weights are PyTorch's defaults. For 10
    classes, 4 blocks in a stage and `widen` of 10, WRN-28-10, it has 36.49 M
    parameters.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        blocks: the number of blocks in each stage.
        widen: the factor of the filters.
        width: the number of filters in the stem.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - https://github.com/han678/CalibWeightedRisk, `models/wrn.py` of commit 060ea74
    """
    inputs = keras.Input(input_shape)
    x = _biased(inputs, width, 3, "conv1")
    for stage in range(3):
        filters = width * widen * 2**stage
        for block in range(blocks):
            name = f"layer{stage + 1}_{block}"
            stride = 2 if stage and not block else 1
            shortcut = x
            if stride > 1 or x.shape[-1] != filters:
                shortcut = _biased(x, filters, 1, f"{name}_shortcut_0", stride)
            x = _biased(batch_norm_relu(x, f"{name}_bn1"), filters, 3, f"{name}_conv1")
            x = batch_norm_relu(x, f"{name}_bn2")
            x = _biased(x, filters, 3, f"{name}_conv2", stride)
            x = layers.Add()([x, shortcut])
    x = layers.BatchNormalization(momentum=0.1, epsilon=1e-5, name="bn1")(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    return keras.Model(inputs, logits(x, num_classes))


def _biased(x: Tensor, filters: int, size: int, name: str, stride: int = 1) -> Tensor:
    """Applies a convolution with a bias and PyTorch's initial weights."""
    limit = (x.shape[-1] * size**2) ** -0.5
    if size > 1:
        # Keras's "same" pads images of even size at the bottom and right only.
        x = layers.ZeroPadding2D(size // 2)(x)
    return layers.Conv2D(
        filters,
        size,
        strides=stride,
        kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
        bias_initializer=keras.initializers.RandomUniform(-limit, limit),
        name=name,
    )(x)


def _basic(x: Tensor, filters: int, stage: int, block: int, name: str) -> Tensor:
    stride = 2 if stage and not block else 1
    activated = batch_norm_relu(x, f"{name}_bn1")
    shortcut = x if block else activated
    if stride > 1 or x.shape[-1] != filters:
        shortcut = convolution(activated, filters, 1, f"{name}_shortcut_0", stride)
    x = convolution(activated, filters, 3, f"{name}_conv1", stride)
    x = batch_norm_relu(x, f"{name}_bn2")
    x = convolution(x, filters, 3, f"{name}_conv2")
    return layers.Add()([x, shortcut])


def _bottleneck(x: Tensor, filters: int, stage: int, block: int, name: str) -> Tensor:
    stride = 2 if stage and not block else 1
    shortcut = x
    if stride > 1 or x.shape[-1] != 4 * filters:
        shortcut = convolution(x, 4 * filters, 1, f"{name}_downsample_0", stride)
    x = convolution(batch_norm_relu(x, f"{name}_bn1"), filters, 1, f"{name}_conv1")
    x = batch_norm_relu(x, f"{name}_bn2")
    x = convolution(x, filters, 3, f"{name}_conv2", stride)
    x = batch_norm_relu(x, f"{name}_bn3")
    x = convolution(x, 4 * filters, 1, f"{name}_conv3")
    return layers.Add()([x, shortcut])
