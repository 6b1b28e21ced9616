"""Converts a state dict that only torch can read to a file that needs no torch.

python -m recipes.models.convert FILE.pth FILE.safetensors
"""

import sys

from recipes.models.pretrained import read, safetensors


def main(arguments: list[str]) -> None:
    """Converts the first of two files to the second."""
    if len(arguments) != 2 or not arguments[1].endswith(".safetensors"):
        sys.exit("usage: python -m recipes.models.convert FILE FILE.safetensors")
    source, destination = arguments
    safetensors().save_file(read(source), destination)


if __name__ == "__main__":
    main(sys.argv[1:])
