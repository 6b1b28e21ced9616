"""Small networks for small images, for features, and for short studies."""

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


def cnn_strided(num_classes: int, input_shape: tuple[int, int, int]) -> keras.Model:
    """Two strided convolutions: 0.24 million multiplications for images of 32 × 32.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).

    Returns:
        A `keras.Model` from images to logits.
    """
    inputs = x = keras.Input(input_shape)
    for block, (filters, size, stride) in enumerate(((24, 4, 4), (48, 3, 2))):
        x = layers.Conv2D(
            filters, size, strides=stride, padding="same", use_bias=False
        )(x)
        x = batch_norm_relu(x, f"bn{block + 1}")
    return keras.Model(inputs, logits(layers.Flatten()(x), num_classes))


def mlp(num_classes: int, input_shape: tuple[int, ...]) -> keras.Model:
    """Two hidden layers of 128 units with batch normalisation.

    Args:
        num_classes: the number of logits.
        input_shape: the shape of a sample, which is flattened.

    Returns:
        A `keras.Model` from samples to logits.
    """
    inputs = keras.Input(input_shape)
    x = layers.Flatten()(inputs)
    for layer in (1, 2):
        x = layers.Dense(128, use_bias=False)(x)
        x = batch_norm_relu(x, f"bn{layer}")
    return keras.Model(inputs, logits(x, num_classes))
