"""Images as PNG data inside a page, encoded with the standard library."""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, to_numpy
from keras_selcal._validation import refuse

# Larger images are shrunk to keep the page small.
MOST_PIXELS = 128

_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def data_uri(image: Array) -> str:
    """Returns a uint8 image (h, w, c), c = 1, 3 or 4, as a PNG data URI."""
    h, w, c = image.shape
    header = struct.pack(">IIBBBBB", w, h, 8, _COLOUR_TYPES[c], 0, 0, 0)
    # Each line begins with its filter: 0, none.
    lines = np.zeros((h, 1 + w * c), np.uint8)
    lines[:, 1:] = image.reshape(h, w * c)
    png = b"\x89PNG\r\n\x1a\n"
    for name, content in (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ):
        png += struct.pack(">I", len(content)) + name + content
        png += struct.pack(">I", zlib.crc32(name + content))
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


class Images:
    """Images of the samples, of which a few are shown.

    uint8 is shown as it is, numbers in [0, 1] from black to white, and others from
    their smallest to their largest.

    Args:
        images: (n, h, w), or (n, h, w, c) with c = 1, 3 or 4.
        n: the number of samples.
    """

    def __init__(self, images: Any, n: int) -> None:
        images = to_numpy(images)
        if images.ndim == 3:
            images = images[..., None]
        allowed = f"of shape ({n}, h, w) or ({n}, h, w, c) with c = 1, 3 or 4"
        fits = images.ndim == 4 and images.shape[-1] in _COLOUR_TYPES
        if not fits or len(images) != n or 0 in images.shape:
            refuse("images", images.shape, allowed)
        if images.dtype.kind not in "buif":
            refuse("images", images.dtype.name, "an array of numbers")
        self._images = images
        self.shape = images.shape[1:3]
        self._range = (0.0, 255.0)
        if images.dtype != np.uint8:
            low, high = float(np.nanmin(images)), float(np.nanmax(images))
            within = low >= 0 and high <= 1
            self._range = (0.0, 1.0) if within else (low, high)

    def data_uris(self, index: Sequence[int]) -> list[str]:
        """Returns some of the images as PNG data URIs."""
        return [data_uri(self._shown(self._images[i])) for i in index]

    def _shown(self, image: Array) -> Array:
        low, high = self._range
        pixels = (image.astype("float64") - low) / ((high - low) or 1.0)
        factor = -(-max(pixels.shape[:2]) // MOST_PIXELS)
        if factor > 1:
            h, w, c = pixels.shape
            # Each block of pixels becomes its mean; incomplete blocks are cut off.
            h, w = max(h // factor, 1), max(w // factor, 1)
            pixels = pixels[: h * factor, : w * factor]
            blocks = pixels.reshape(h, pixels.shape[0] // h, w, -1, c)
            pixels = blocks.mean(axis=(1, 3))
        return np.rint(255 * np.clip(np.nan_to_num(pixels), 0.0, 1.0)).astype(np.uint8)
