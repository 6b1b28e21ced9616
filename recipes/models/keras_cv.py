"""The backbones of keras-cv with a classifier on top, for larger images."""

from typing import Any

import keras
from keras import layers

from recipes.models._layers import logits


def keras_cv_resnet(
    num_classes: int, input_shape: tuple[int, int, int], *, version: int
) -> keras.Model:
    """ResNet-50 of keras-cv, whose 7 × 7 stem has stride 2 and is followed by pooling.

    The model consists of Keras's own layers: a saved one loads without keras-cv.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels).
        version: 1 for `ResNetBackbone`, 2 for `ResNetV2Backbone`.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - He et al., [Deep Residual Learning for Image
      Recognition](https://arxiv.org/abs/1512.03385)
    - He et al., [Identity Mappings in Deep Residual
      Networks](https://arxiv.org/abs/1603.05027)
    """
    models = _keras_cv_models()
    backbone = models.ResNetBackbone if version == 1 else models.ResNetV2Backbone
    features = backbone(
        stackwise_filters=[64, 128, 256, 512],
        stackwise_blocks=[3, 4, 6, 3],
        stackwise_strides=[1, 2, 2, 2],
        include_rescaling=False,
        input_shape=input_shape,
    )
    x = layers.GlobalAveragePooling2D()(features.output)
    return keras.Model(features.inputs, logits(x, num_classes))


def _keras_cv_models() -> Any:
    try:
        import keras_cv
    except ImportError as error:
        raise ImportError(
            "The models of keras-cv need keras-cv and TensorFlow on every backend: "
            'pip install "keras-selcal[keras-cv]"'
        ) from error
    return keras_cv.models
