"""Small convolutional networks for small images and short studies."""

from collections.abc import Sequence

import keras
from keras import layers

from recipes.models._layers import batch_norm_relu, convolution, logits


def cnn(
    num_classes: int, input_shape: tuple[int, int, int], *, filters: Sequence[int]
) -> keras.Model:
    """Blocks of a 3 × 3 convolution, batch normalisation, ReLU and pooling by 2.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels); at least 2 to the power of the number of
            blocks.
        filters: the number of filters in each block.

    Returns:
        A `keras.Model` from images to logits.
    """
    inputs = x = keras.Input(input_shape)
    for block, number in enumerate(filters):
        x = convolution(x, number, 3, f"conv{block + 1}")
        x = layers.MaxPooling2D()(batch_norm_relu(x, f"bn{block + 1}"))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, logits(x, num_classes))
