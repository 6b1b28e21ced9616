"""Image files, decoded in parallel, and resized images."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from recipes.data.base import DataError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".tif", ".tiff", ".webp"}


def read_images(paths: Sequence[Path], size: int, *, fit: bool = False) -> np.ndarray:
    """Returns the images of files, (n, size, size, 3), uint8.

    Args:
        paths: image files.
        size: height and width of the images.
        fit: whether to resize and crop images of another size. If False, they raise an
            error.
    """
    pillow()
    images = np.empty((len(paths), size, size, 3), "uint8")

    def read(path: Path) -> np.ndarray:
        return _read_image(path, size, fit)

    # Pillow releases the interpreter's lock while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for index, image in enumerate(pool.map(read, paths)):
            images[index] = image
    return images


def _read_image(path: Path, size: int, fit: bool) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            # Cameras store how they were held instead of rotating the image.
            image = ImageOps.exif_transpose(file) if fit else file
            image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    if image.size != (size, size):
        if not fit:
            width, height = image.size
            raise DataError(
                f"{path} must have {size}×{size} pixels. Received: {width}×{height}"
            )
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)


def resize(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns images resized by bilinear interpolation, (n, height, width, c), uint8.

    Args:
        images: (n, h, w, c), uint8, with 1 or 3 channels.
        size: (height, width).
    """
    pil = pillow()
    height, width = size
    resized = [
        pil.fromarray(image).resize((width, height), pil.Resampling.BILINEAR)
        for image in (images[..., 0] if images.shape[-1] == 1 else images)
    ]
    return np.stack(resized).reshape(len(images), height, width, -1)


def pillow() -> Any:
    """Returns Pillow's `Image` module, or says how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Pillow reads and resizes images: pip install pillow"
        ) from error
    return Image
