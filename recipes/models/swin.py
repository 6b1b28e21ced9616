"""Swin transformers.

keras-hub has one too, but installs TensorFlow on every backend, and its converter does
not read timm's names.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import initializers, layers, ops

from keras_selcal._validation import refuse
from recipes.models._layers import Tensor, dense, logits


def swin(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    patch: int = 4,
    width: int = 96,
    depths: Sequence[int] = (2, 2, 6, 2),
    heads: Sequence[int] = (3, 6, 12, 24),
    window: int = 7,
    drop_path: float = 0.1,
) -> keras.Model:
    """A Swin transformer; Swin-Tiny by default.

    Attention is limited to windows; every second block shifts them by half a window, so
    that neighbouring windows are connected. Between stages, 2 × 2 tokens are merged
    into one of twice the width. The default is timm's `swin_tiny_patch4_window7_224`,
    with 28.29 M parameters for 1000 classes.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels); a square that has a whole number of
            windows in every stage.
        patch: side of a patch in pixels.
        width: the number of features of a token in the first stage.
        depths: the number of blocks in each stage.
        heads: the number of attention heads in each stage.
        window: side of a window in tokens. A smaller stage is one window.
        drop_path: the probability with which training skips the branches of the last
            block; it rises linearly from 0 at the first block.

    Returns:
        A `keras.Model` from images to logits.

    References:
    - Liu et al., [Swin Transformer](https://arxiv.org/abs/2103.14030)
    """
    _check_shape(input_shape, patch, window, len(depths))
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(width, patch, strides=patch, name="patch_embed_proj")(inputs)
    x = _norm(x, "patch_embed_norm")
    rates = iter(np.linspace(0.0, drop_path, sum(depths)))
    for stage, depth in enumerate(depths):
        if stage:
            x = _merge(x, f"layers_{stage}_downsample")
        for block in range(depth):
            name = f"layers_{stage}_blocks_{block}"
            shift = window // 2 if block % 2 else 0
            x = _block(x, heads[stage], window, shift, float(next(rates)), name)
    x = layers.GlobalAveragePooling2D()(_norm(x, "norm"))
    x = logits(x, num_classes, initializers.TruncatedNormal(stddev=0.02))
    return keras.Model(inputs, x)


def _check_shape(
    input_shape: tuple[int, int, int], patch: int, window: int, stages: int
) -> None:
    """Checks that every stage has a whole number of windows."""
    grid, rest = divmod(input_shape[0], patch)
    fits = not rest and input_shape[0] == input_shape[1]
    for stage in range(stages):
        fits = fits and (grid <= window or grid % window == 0)
        if stage < stages - 1:
            grid, rest = divmod(grid, 2)
            fits = fits and not rest
    if not fits or not grid:
        side = patch * window * 2 ** (stages - 1)
        allowed = f"square, and tiled by windows, such as ({side}, {side}, 3)"
        refuse("input_shape", input_shape, allowed)


def _merge(x: Tensor, name: str) -> Tensor:
    _, height, length, width = x.shape
    x = layers.Reshape((height // 2, 2, length // 2, 2, width))(x)
    # State dicts have the four tokens in column order.
    x = layers.Permute((1, 3, 4, 2, 5))(x)
    x = layers.Reshape((height // 2, length // 2, 4 * width))(x)
    return dense(
        _norm(x, f"{name}_norm"), 2 * width, f"{name}_reduction", use_bias=False
    )


def _block(
    x: Tensor, heads: int, window: int, shift: int, drop_path: float, name: str
) -> Tensor:
    width = x.shape[-1]
    y = dense(_norm(x, f"{name}_norm1"), 3 * width, f"{name}_attn_qkv")
    y = WindowAttention(heads, window, shift, name=f"{name}_attn")(y)
    x = _add(x, dense(y, width, f"{name}_attn_proj"), drop_path)
    y = _norm(x, f"{name}_norm2")
    y = dense(y, 4 * width, f"{name}_mlp_fc1", activation="gelu")
    return _add(x, dense(y, width, f"{name}_mlp_fc2"), drop_path)


def _norm(x: Tensor, name: str) -> Tensor:
    return layers.LayerNormalization(epsilon=1e-5, name=name)(x)


def _add(x: Tensor, branch: Tensor, drop_path: float) -> Tensor:
    if drop_path:
        branch = layers.Dropout(drop_path, noise_shape=(None, 1, 1, 1))(branch)
    return layers.Add()([x, branch])


@keras.saving.register_keras_serializable("keras_selcal_recipes")
class WindowAttention(layers.Layer):
    """Attention within shifted windows, with a learned bias by relative position.

    Formula:

    ```
    softmax(q·kᵀ/√d + B + M)·v
    ```

    B is a bias for the relative position of two tokens. The grid is rolled by the
    shift, so that the last windows hold tokens from both ends: M is −100 between tokens
    of different ends, and 0 otherwise.

    Args:
        heads: the number of heads.
        window: side of a window in tokens. A smaller grid is one window, not shifted.
        shift: number of tokens by which the windows are shifted.
        **kwargs: further arguments of `keras.layers.Layer`.
    """

    def __init__(self, heads: int, window: int, shift: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.window = window
        self.shift = shift

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Creates the biases, and what depends on the grid."""
        self._grid = input_shape[1]
        self._side = min(self._grid, self.window)
        self._roll = self.shift if self._grid > self.window else 0
        self._positions = _relative_positions(self._side)
        self._mask = _mask(self._grid, self._side, self._roll) if self._roll else None
        self.relative_position_bias_table = self.add_weight(
            shape=((2 * self._side - 1) ** 2, self.heads),
            initializer=initializers.TruncatedNormal(stddev=0.02),
            name="relative_position_bias_table",
        )

    def call(self, qkv: Tensor) -> Tensor:
        """Maps queries, keys and values (n, grid, grid, 3·width) to their attention."""
        grid, side = self._grid, self._side
        windows, tokens = grid // side, side * side
        width = qkv.shape[-1] // 3
        features = width // self.heads

        if self._roll:
            qkv = ops.roll(qkv, (-self._roll, -self._roll), axis=(1, 2))
        x = ops.reshape(qkv, (-1, windows, side, windows, side * 3 * width))
        x = ops.transpose(x, (0, 1, 3, 2, 4))
        x = ops.reshape(x, (-1, windows**2, tokens, 3, self.heads, features))
        q, k, v = x[:, :, :, 0], x[:, :, :, 1], x[:, :, :, 2]

        scores = ops.einsum("nwqhd,nwkhd->nwhqk", q * features**-0.5, k)
        # Half precision is too coarse for a softmax over 49 tokens.
        scores = ops.cast(scores, "float32") + self._bias()
        weights = ops.cast(ops.softmax(scores), v.dtype)
        x = ops.einsum("nwhqk,nwkhd->nwqhd", weights, v)

        x = ops.reshape(x, (-1, windows, windows, side, side * width))
        x = ops.transpose(x, (0, 1, 3, 2, 4))
        x = ops.reshape(x, (-1, grid, grid, width))
        if self._roll:
            x = ops.roll(x, (self._roll, self._roll), axis=(1, 2))
        return x

    def _bias(self) -> Tensor:
        """Returns B + M, (1 or windows, heads, tokens, tokens)."""
        table = ops.cast(self.relative_position_bias_table, "float32")
        bias = ops.take(table, self._positions, axis=0)
        bias = ops.transpose(bias, (2, 0, 1))[None]
        return bias if self._mask is None else ops.add(bias, self._mask)

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*input_shape[:-1], input_shape[-1] // 3)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "heads": self.heads,
            "window": self.window,
            "shift": self.shift,
        }


def _relative_positions(side: int) -> np.ndarray:
    """Returns the row of the bias table for each pair of tokens in a window."""
    row, column = np.divmod(np.arange(side * side), side)
    rows = row[:, None] - row + side - 1
    columns = column[:, None] - column + side - 1
    return (rows * (2 * side - 1) + columns).astype("int32")


def _mask(grid: int, side: int, shift: int) -> np.ndarray:
    """Returns M, (windows, 1, tokens, tokens)."""
    # Parts of the rolled grid: before the last window, and the two ends within it.
    part = np.digitize(np.arange(grid), (grid - side, grid - shift))
    parts = 3 * part[:, None] + part
    parts = parts.reshape(grid // side, side, grid // side, side)
    parts = parts.swapaxes(1, 2).reshape(-1, 1, side * side)
    apart = parts != parts.swapaxes(1, 2)
    return np.where(apart, -100.0, 0.0).astype("float32")[:, None]
