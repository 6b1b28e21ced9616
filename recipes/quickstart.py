"""Train, calibrate, abstain and report: `python -m recipes quickstart`."""

import os
import time
from pathlib import Path

import keras
import numpy as np

from keras_selcal import CalibrationReport, SelectiveClassifier, TemperatureScaling
from recipes.tasks import RunError

EPOCHS = 80
NOISE = 0.3  # standard deviation of the noise in the pixels, which are in [0, 1]
TRAIN, VALIDATION = 400, 700
RISK, DELTA = 0.05, 0.1


def quickstart(out: str | os.PathLike[str], epochs: int = EPOCHS) -> Path:
    """Trains a network, calibrates it, lets it abstain, and writes a report.

    The data are scikit-learn's 8 × 8 digits with noise in the pixels. A network that is
    trained for long on few of them is right less often than it states.

    Args:
        out: folder of the report.
        epochs: length of the training.

    Returns:
        The path of the report.
    """
    start = time.perf_counter()
    x, y = _digits()
    train, validation, test = np.split(np.arange(len(y)), [TRAIN, TRAIN + VALIDATION])
    _say(f"1. Train a network on {TRAIN} noisy images of digits, for {epochs} epochs.")
    model = _train(x[train], y[train], epochs)
    stated = _softmax(model.predict(x[test], verbose=0))
    before = CalibrationReport(y[test], stated, name="as trained")
    accuracy = before["accuracy"].value
    _say(
        f"   On {len(test)} test images its mean confidence is "
        f"{_percent(stated.max(-1).mean())}, but {_percent(accuracy)} are right."
    )

    _say(
        f"2. Calibrate it, and choose when it abstains, on {VALIDATION} other images: "
        f"at most\n   {_percent(RISK)} of the answers may be wrong, with a probability "
        f"of {_percent(1 - DELTA)}."
    )
    classifier = SelectiveClassifier(model, calibrator=TemperatureScaling())
    try:
        classifier.fit(x[validation], y[validation], risk=RISK, delta=DELTA, verbose=0)
    except ValueError as error:  # a network that is wrong too often
        raise RunError(f"{error} Train for longer by --epochs.") from error
    stated = classifier.predict_proba(x[test], verbose=0)
    after = CalibrationReport(y[test], stated, name="calibrated")
    _say(
        f"   On the test images its mean confidence is now "
        f"{_percent(stated.max(-1).mean())}. The calibration error (ECE)\n   is "
        f"{100 * after['ece'].value:.1f} points instead of "
        f"{100 * before['ece'].value:.1f}."
    )

    _say("3. Answer the test images, or abstain.")
    found = classifier.evaluate(x[test], y[test], verbose=0)
    _say(
        f"   It answers {_percent(found['coverage'])} of them, and "
        f"{_percent(found['selective_risk'])} of the answers are wrong, instead of "
        f"{_percent(1 - accuracy)}."
    )

    _say("4. Write the report, with the images that it got wrong.")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    page = after.to_html(
        folder / "report.html",
        others=[before],
        title="Quickstart: noisy digits",
        images=np.round(255 * x[test]).astype("uint8"),
    )
    seconds = time.perf_counter() - start
    _say(f"   Done in {seconds:.0f} s. Open it in a browser:\n   {page.resolve()}")
    return page


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns images (1797, 8, 8, 1) with noise, and their labels, shuffled."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(y))
    x = np.clip(x[order] / 16 + NOISE * rng.normal(size=x.shape), 0, 1)
    return x.reshape(-1, 8, 8, 1).astype("float32"), y[order]


def _train(x: np.ndarray, y: np.ndarray, epochs: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss)

    def show(epoch: int, logs: dict[str, float]) -> None:
        if (epoch + 1) % max(1, epochs // 4) == 0:
            _say(f"   epoch {epoch + 1} of {epochs}: loss {logs['loss']:.4f}")

    progress = keras.callbacks.LambdaCallback(on_epoch_end=show)
    model.fit(x, y, batch_size=64, epochs=epochs, callbacks=[progress], verbose=0)
    return model


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.softmax(logits)))


def _say(text: str) -> None:
    print(text, flush=True)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
