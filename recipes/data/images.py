"""Image files, decoded in parallel."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from recipes.data.base import DataError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".tif", ".tiff", ".webp"}


def read_images(paths: Sequence[Path], size: int, *, fit: bool = False) -> np.ndarray:
    """Returns the images, (n, size, size, 3), uint8.

    Args:
        paths: image files.
        size: their height and width.
        fit: whether to resize images of another size, and to crop what is not square;
            otherwise they are refused.
    """
    pillow()
    images = np.empty((len(paths), size, size, 3), "uint8")

    def read(start: int) -> None:
        for i in range(start, min(start + _AT_ONCE, len(paths))):
            images[i] = _read_image(paths[i], size, fit)

    # Pillow decodes without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(0, len(paths), _AT_ONCE)):
            pass
    return images


_AT_ONCE = 64


def _read_image(path: Path, size: int, fit: bool):
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            if fit:  # cameras tell how they were held, in place of turning the image
                image = ImageOps.exif_transpose(image)
            image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    if image.size != (size, size):
        if not fit:
            width, height = image.size
            raise DataError(
                f"{path} must be of {size}×{size} pixels. Received: {width}×{height}"
            )
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)


def pillow():
    """Returns Pillow's `Image` module, or tells how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Image files are read by Pillow: pip install pillow"
        ) from error
    return Image
