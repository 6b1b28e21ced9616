"""Files that one backend saves and the others load: run by `test_cross.py` in a process
for each backend at the same time, `python cross_worker.py PARENT FOLDER BACKEND ...`,
where PARENT is the process that runs the test, and each backend has a folder in FOLDER.
"""

import os
import sys
import time
from pathlib import Path

# `recipes` is in no wheel. Last, so that the installed keras_selcal is the one tested.
sys.path.append(str(Path(__file__).parents[1]))

import keras
import numpy as np
from backends import compile_fast
from classifier_data import draw, network
from model_data import parity, small, state_dict

from keras_selcal import (
    CalibrateAtEnd,
    ConformalClassifier,
    SelectiveClassifier,
    TemperatureScaling,
)
from recipes import models

NETWORKS = ("cifar_resnet", "vit", "swin")
WRAPPED = ("wrapped", "callback")


def trained(*callbacks, model=None):
    """Returns a network that was compiled and trained: its optimizer can be a class of
    this backend.
    """
    x, y = draw()
    model = model or network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=300, verbose=0, callbacks=[*callbacks])
    return model


def selective():
    """Returns fitted classifiers by name, each with inputs."""
    x, y = draw()
    plain = SelectiveClassifier(trained(), "margin", calibrator=TemperatureScaling())
    several = SelectiveClassifier(
        network(),
        calibrator=TemperatureScaling(multi_label=True),
        multi_label=True,
        decision_threshold=0.4,
    )
    layers = keras.layers
    tokens = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(9, 1, mask_zero=True, embeddings_initializer="normal"),
            layers.Activation("sigmoid"),
        ]
    )
    decided = SelectiveClassifier(network())
    decided.fit(x, y, costs=3 - 2 * np.eye(3), abstain_cost=1.4, verbose=0)
    # A network with a part that was compiled and trained before.
    inputs = keras.Input(x.shape[1:])
    whole = keras.Model(inputs, layers.Dense(3, name="head")(trained()(inputs)))
    nested = SelectiveClassifier(trained(model=whole), calibrator="auto")
    padded, ids = SelectiveClassifier(tokens), np.arange(200).reshape(50, 4) % 9
    return {
        "plain": (plain.fit(x, y, coverage=0.6, verbose=0), x),
        "decided": (decided, x),
        "nested": (nested.fit(x, y, coverage=0.6, verbose=0), x),
        "several": (several.fit(x, np.eye(3)[y], risk=0.3, delta=0.1, verbose=0), x),
        "padded": (padded.fit(ids, ids % 2, coverage=0.5, verbose=0), ids),
    }


def sets():
    """Returns fitted classifiers by name, each with inputs."""
    x, y = draw()
    found = {}
    for name, seed in {"sets": None, "random_sets": 2}.items():
        classifier = ConformalClassifier(
            trained(), method="aps", seed=seed, calibrator=TemperatureScaling()
        )
        found[name] = (classifier.fit(x, y, verbose=0), x)
    return found


def save(folder):
    """Saves classifiers with their answers, and networks with those of PyTorch."""
    for name, (classifier, x) in (selective() | sets()).items():
        classifier.save(folder / f"{name}.keras")
        np.savez(
            folder / f"{name}.npz",
            x=x,
            threshold=classifier.threshold,
            record=repr(classifier.record),
            **classifier.predict(x, verbose=0)._asdict(),
        )
    x, y = draw()
    calibrate = CalibrateAtEnd((x, y), folder / "callback.keras", verbose=0)
    model = trained(calibrate)
    wrapped = calibrate.calibrator.wrap(model)
    wrapped.save(folder / "wrapped.keras")
    assert model.optimizer.built
    for name in WRAPPED:
        np.savez(folder / f"{name}.npz", x=x, p=wrapped.predict(x, verbose=0))
    for name in NETWORKS:
        model = small(name)
        np.savez(folder / "weights.npz", **state_dict(name))
        models.load_pretrained(model, folder / "weights.npz")
        model.save(folder / f"{name}.keras")


def load(folder):
    """Loads what `save` wrote: all answers are the same."""
    for path in sorted(folder.glob("*.keras")):
        if path.stem in NETWORKS:
            model, expected = keras.models.load_model(path), parity(path.stem)
            logits = model.predict(expected["x"], verbose=0)
            np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)
            continue
        if path.stem in WRAPPED:
            model, data = (
                keras.models.load_model(path),
                np.load(path.with_suffix(".npz")),
            )
            p = model.predict(data["x"], verbose=0)
            np.testing.assert_allclose(p, data["p"], atol=1e-5)
            continue
        kind = ConformalClassifier if "sets" in path.stem else SelectiveClassifier
        classifier, data = kind.load(path), np.load(path.with_suffix(".npz"))
        for name, found in classifier.predict(data["x"], verbose=0)._asdict().items():
            if name == "confidence":
                np.testing.assert_allclose(found, data[name], atol=1e-5)
            else:
                # With a seed, rounding can move single classes in or out of sets.
                few = 2 if path.stem == "random_sets" else 0
                assert (found != data[name]).sum() <= few, (path, name)
        served = keras.models.load_model(path).predict(data["x"], verbose=0)
        assert (served["labels"] == data["labels"]).all()
        np.testing.assert_allclose(classifier.threshold, data["threshold"], rtol=1e-6)
        assert repr(classifier.record) == str(data["record"])


def main(parent, folder, *backends):
    folder = Path(folder)
    own = folder / f"{keras.backend.backend()}.unfinished"
    own.mkdir()
    save(own)
    own.rename(own.with_suffix(""))
    for other in sorted({*backends} - {keras.backend.backend()}):
        # If the other fails, whoever has started this process ends it, or is gone.
        while not (folder / other).exists():
            assert os.getppid() == int(parent)
            time.sleep(0.05)
        load(folder / other)


if __name__ == "__main__":
    compile_fast()
    main(*sys.argv[1:])
