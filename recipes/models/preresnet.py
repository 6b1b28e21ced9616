"""Residual networks that normalise and rectify first: PreResNets and Wide ResNets."""

import keras
from keras import layers

from recipes.models._layers import Tensor, batch_norm_relu, convolution, logits


def preresnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    blocks: int,
    widen: int = 1,
    width: int = 16,
) -> keras.Model:
    """A pre-activation ResNet for images of 32 × 32.

    A stem of 3 × 3 with `width` filters, three stages of `blocks` basic blocks with
    1, 2 and 4 times `width`·`widen` filters, and a last batch normalisation and ReLU.
    The shortcut of a stage's first block starts after the block's first activation,
    and is a 1 × 1 convolution where the shape changes.

    PreResNet-56 is nine blocks a stage (6·9 + 2 layers, as in ResNet-56; 0.86 M
    parameters), WRN-28-10 four blocks a stage, widened ten times (36.48 M), without
    dropout.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        blocks: the number of blocks in each stage.
        widen: the factor of a Wide ResNet.
        width: filters of the stem.

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
    for stage in range(3):
        for block in range(blocks):
            name = f"layer{stage + 1}_{block}"
            x = _block(x, width * widen * 2**stage, stage, block, name)
    x = batch_norm_relu(x, "bn")
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes))


def _block(x: Tensor, filters: int, stage: int, block: int, name: str) -> Tensor:
    stride = 2 if stage and not block else 1
    activated = batch_norm_relu(x, f"{name}_bn1")
    shortcut = x if block else activated
    if stride > 1 or x.shape[-1] != filters:
        shortcut = convolution(activated, filters, 1, f"{name}_shortcut_0", stride)
    x = convolution(activated, filters, 3, f"{name}_conv1", stride)
    x = batch_norm_relu(x, f"{name}_bn2")
    x = convolution(x, filters, 3, f"{name}_conv2")
    return layers.Add()([x, shortcut])
