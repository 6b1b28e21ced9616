"""Logits, weights and images of real networks, where they are at hand."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest


def find(name):
    """Returns the path of a file in the folder of real data, or skips the test."""
    default = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("KERAS_SELCAL_DATA", default)) / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand: set KERAS_SELCAL_DATA to its folder")
    return path


def load(name):
    """Returns the arrays of an .npz file, or skips the test."""
    with np.load(find(name)) as data:
        return {key: data[key] for key in data.files}


def load_logits(name):
    """Returns the arrays of a file of logits, or skips the test."""
    return load(f"logits/{name}")


def cifar10():
    """Returns the path of CIFAR-10, in a form that recipes read, or skips the test.

    The folder of real data has it, or the script `make_cifar10`, which is run once.
    """
    for name in ("cifar10.npz", "cifar-10-batches-py"):
        with contextlib.suppress(pytest.skip.Exception):
            return find(name)
    script = find("make_cifar10")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    kept = cache / "keras_selcal" / "cifar10.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder, kept.name)
            try:
                subprocess.run([sys.executable, script, made], check=True, timeout=300)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{script} cannot make CIFAR-10: {error}")
            made.replace(kept)
    return kept
