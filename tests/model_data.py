"""The small networks of the parity files, and their outputs."""

from functools import partial
from pathlib import Path

import numpy as np
from backends import JIT_ONE_OFF, numpy

from recipes.models.preresnet import preresnet
from recipes.models.resnet import bottleneck_resnet, cifar_resnet
from recipes.models.swin import swin
from recipes.models.vit import vit

# Outputs of PyTorch, from write_parity.py, and the same networks here.
PARITY = Path(__file__).parent / "recipes" / "parity"
SMALL = {
    "cifar_resnet": partial(cifar_resnet, depth=8, width=4),
    "bottleneck_resnet": partial(bottleneck_resnet, blocks=(2, 1), width=2),
    "preresnet": partial(preresnet, blocks=2, width=4),
    "preresnet_bottleneck": partial(preresnet, blocks=2, bottleneck=True, width=2),
    "vit": partial(vit, patch=4, width=8, depth=2, heads=2),
    "swin": partial(swin, patch=2, width=4, depths=(2, 1), heads=(1, 2), window=4),
}


def small(name, num_classes=10):
    return SMALL[name](num_classes, parity(name)["x"].shape[1:])


def parity(name):
    with np.load(PARITY / f"{name}.npz") as arrays:
        return dict(arrays)


def state_dict(name):
    """Returns PyTorch's weights by their names there."""
    prefix = "state/"
    arrays = parity(name).items()
    return {key.removeprefix(prefix): a for key, a in arrays if key.startswith(prefix)}


def predict(model, x):
    return model.predict(x, verbose=0)


def outputs(model, x):
    """Returns predictions, compiled where eager operations are compiled one by one."""
    if JIT_ONE_OFF:
        return predict(model, x)
    return numpy(model(x, training=False))
