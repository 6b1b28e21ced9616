"""Networks for larger images learn real images, from random weights.

The images are those of CIFAR-10 where they are at hand (see `real_data.cifar10`), else
enlarged digits.
"""

import math

import numpy as np
import pytest
import real_data
from sklearn.datasets import load_digits

from keras_selcal import functional
from recipes import training
from recipes.data import cifar
from recipes.data.base import Split
from recipes.progress import Progress, console
from recipes.runs import Run
from recipes.settings import TRANSFORMERS
from recipes.tasks import Task

# It takes minutes: only the environment keras_cv has all of these networks.
pytest.importorskip("keras_hub", reason="tox -e keras_cv trains these networks")
pytest.importorskip("keras_cv", reason="tox -e keras_cv trains these networks")

NETWORKS = {
    "keras_cv_resnet50": {"set": ("learning_rate=0.03",), "epochs": 14},
    "keras_cv_resnet50_v2": {"set": ("learning_rate=0.03",), "epochs": 14},
    "keras_hub_vit_small": {"epochs": 6},
    "vit_small": {"set": ("image_size=32", "learning_rate=0.05"), "epochs": 6},
    # A stand-in: Swin-Tiny itself takes images of 224 × 224, and minutes.
    "swin_tiny": {
        **{"set": ("image_size=28", "learning_rate=0.3"), "epochs": 40},
        "stand_in": True,
    },
}


def enlarged_digits():
    x, y = load_digits(return_X_y=True)
    x = np.kron(x.reshape(-1, 8, 8) * 15.9, np.ones((1, 4, 4)))
    x = np.repeat(x[..., None], 3, -1).astype("uint8")
    return Split(x[:500], y[:500]), Split(x[500:], y[500:])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The path of a file in the form of CIFAR-10, with few images."""
    try:
        train, test = cifar.splits("cifar10", real_data.cifar10())
    except pytest.skip.Exception:
        train, test = enlarged_digits()
    # Whole batches of 8, because every other shape is compiled: 96 images to train on,
    # of which the task draws 16, 24 to validate, and 8 to test.
    train, test = train[:120], test[:8]
    path = tmp_path_factory.mktemp("data") / "cifar10.npz"
    np.savez(path, x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    return str(path)


@pytest.mark.filterwarnings("ignore:Layer 'stage_0' looks like it has unbuilt state")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_learns(name, images, tmp_path):
    """The loss on the training images, evaluated, ends clearly below its start."""
    options = {"data_dir": images, "subset": 16, "batch_size": 8, "set": ()}
    options |= NETWORKS[name]
    options["set"] += ("schedule=cosine", "clipnorm=1", "augmentation=none")
    options["set"] += ("validate_every=100", "warmup_epochs=0")
    # The paper only fine-tunes these.
    options["from_scratch"] = name in TRANSFORMERS
    task = Task("cifar10", name, "xe", checkpoint_every=100, **options)
    run = Run(tmp_path / "run")
    with Progress(console(quiet=True)) as progress:
        training.train(run, task, progress)
    start = run.history()[0]["loss"]
    logits, labels = run.predictions("train")
    end = functional.nll(labels, logits, from_logits=True)
    assert np.isfinite(run.predictions("test").logits).all()
    assert end < 0.85 * min(start, math.log(10))
