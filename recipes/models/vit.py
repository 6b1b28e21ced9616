"""Vision transformers.

keras-hub has them too, but installs TensorFlow on every backend, and its converters do
not read timm's names.
"""

from typing import Any

import keras
from keras import initializers, layers, ops

from keras_selcal._validation import refuse
from recipes.models._layers import Tensor, dense, logits


def vit(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    patch: int = 16,
    width: int = 384,
    depth: int = 12,
    heads: int = 6,
) -> keras.Model:
    """A vision transformer that classifies by its class token; ViT-Small by default.

    The default is timm's `vit_small_patch16_224`, with 22.05 M parameters for 1000
    classes and images of 224 × 224.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels); height and width are multiples of
            `patch`.
        patch: side of a patch in pixels.
        width: the number of features of a token.
        depth: the number of blocks.
        heads: the number of attention heads.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - Dosovitskiy et al., [An Image is Worth 16x16
      Words](https://arxiv.org/abs/2010.11929)
    - Steiner et al., [How to train your ViT?](https://arxiv.org/abs/2106.10270)
    """
    height, length, _ = input_shape
    if height % patch or length % patch:
        refuse("input_shape", input_shape, f"(h, w, c), h and w multiples of {patch}")
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(width, patch, strides=patch, name="patch_embed_proj")(inputs)
    x = layers.Reshape((height // patch * (length // patch), width))(x)
    x = ClassTokenAndPositions(name="tokens")(x)
    for block in range(depth):
        x = _block(x, heads, f"blocks_{block}")
    x = _norm(x, "norm")
    x = logits(x[:, 0], num_classes, initializers.TruncatedNormal(stddev=0.02))
    return keras.Model(inputs, x)


def _block(x: Tensor, heads: int, name: str) -> Tensor:
    width = x.shape[-1]
    y = dense(_norm(x, f"{name}_norm1"), 3 * width, f"{name}_attn_qkv")
    y = Attention(heads, name=f"{name}_attn")(y)
    x = layers.Add()([x, dense(y, width, f"{name}_attn_proj")])
    y = _norm(x, f"{name}_norm2")
    y = dense(y, 4 * width, f"{name}_mlp_fc1", activation="gelu")
    return layers.Add()([x, dense(y, width, f"{name}_mlp_fc2")])


def _norm(x: Tensor, name: str) -> Tensor:
    return layers.LayerNormalization(epsilon=1e-6, name=name)(x)


@keras.saving.register_keras_serializable("keras_selcal_recipes")
class ClassTokenAndPositions(layers.Layer):
    """Prepends a learned class token, and adds a learned position to each token."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Creates the token and the positions."""
        _, tokens, width = input_shape
        self.cls_token = self.add_weight(
            shape=(1, 1, width),
            initializer=initializers.TruncatedNormal(stddev=1e-6),
            name="cls_token",
        )
        self.pos_embed = self.add_weight(
            shape=(1, tokens + 1, width),
            initializer=initializers.TruncatedNormal(stddev=0.02),
            name="pos_embed",
        )

    def call(self, x: Tensor) -> Tensor:
        """Maps (n, tokens, width) to (n, 1 + tokens, width)."""
        token = ops.cast(self.cls_token, x.dtype)
        token = ops.broadcast_to(token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1) + ops.cast(self.pos_embed, x.dtype)

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (input_shape[0], input_shape[1] + 1, input_shape[2])


@keras.saving.register_keras_serializable("keras_selcal_recipes")
class Attention(layers.Layer):
    """Scaled dot-product attention between tokens.

    Args:
        heads: the number of heads.
        **kwargs: further arguments of `keras.layers.Layer`.
    """

    def __init__(self, heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads

    def call(self, qkv: Tensor) -> Tensor:
        """Maps queries, keys and values (n, tokens, 3·width) to (n, tokens, width)."""
        _, tokens, width = qkv.shape
        features = width // (3 * self.heads)
        qkv = ops.reshape(qkv, (-1, tokens, 3, self.heads, features))
        x = ops.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
        return ops.reshape(x, (-1, tokens, width // 3))

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*input_shape[:-1], input_shape[-1] // 3)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": self.heads}
