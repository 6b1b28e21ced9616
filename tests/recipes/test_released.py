"""The losses of the paper's public code, against NumPy in float64."""

import keras
import numpy as np
import pytest
import tiny_run
from backends import JIT_ONE_OFF, value_and_gradient

from keras_selcal import AURCLoss, KDECrossentropy
from recipes import losses, training
from recipes.paper import released
from recipes.settings import settings

N, K = 24, 5


@pytest.fixture
def logits(rng):
    return (2 * rng.normal(size=(N, K))).astype("float32")


@pytest.fixture
def labels(rng):
    return rng.integers(0, K, N)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weights(s, quantile, nu, counts=0):
    """β by the definition in `ReleasedAULoss`."""
    h = np.histogram(s, np.linspace(0, 1, 65))[0] + counts
    centres = (np.arange(64) + 0.5) / 64

    def cdf(at):
        steps = 1 / (1 + np.exp(-(np.reshape(at, (-1, 1)) - centres) / nu))
        return np.clip(steps @ h / h.sum(), 1 / (len(s) + 1), len(s) / (len(s) + 1))

    tau = np.quantile(s, quantile)
    return -np.log(1 - np.where(s >= tau, cdf(tau), cdf(s)))


def grad(loss, labels, logits):
    return value_and_gradient(lambda z: loss(labels, z), logits, jit=JIT_ONE_OFF)[1]


@pytest.mark.parametrize("csf", ["msp", "margin"])
def test_au_takes_the_softmax_twice(csf, logits, labels):
    p = softmax(logits.astype("float64"))
    q = np.sort(softmax(p))
    s = q[:, -1] - (q[:, -2] if csf == "margin" else 0)
    expected = weights(s, 0.75, 0.1) * -np.log(p[np.arange(N), labels])
    options = {"csf": csf, "quantile": 0.75, "smoothing": 0.1}
    loss = losses.build("au_released", options)
    found = keras.ops.convert_to_numpy(loss.call(labels, logits))
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_au_with_neg_entropy_is_cross_entropy_times_a_constant(logits, labels):
    """σ(1/(128·0.05)) = 0.53898, and −ln(1 − 0.53898) = 0.77431."""
    loss = released.ReleasedAULoss("neg_entropy", 0.4, 0.05, from_logits=True)
    xe = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ours, plain = grad(loss, labels, logits), grad(xe, labels, logits)
    np.testing.assert_allclose(ours, 0.77431 * plain, rtol=1e-4, atol=1e-8)


def test_au_counts_the_scores_of_the_epoch(logits, labels):
    """The histogram is empty when an epoch begins."""
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["released_scores"])

    model = keras.Sequential([keras.layers.Input((K,)), keras.layers.Dense(K)])
    model.compile("sgd", released.ReleasedAULoss(from_logits=True))
    model.fit(
        *(logits, labels),
        batch_size=6,
        epochs=2,
        verbose=0,
        validation_data=(logits[:6], labels[:6]),
        callbacks=[released.ReleasedScores(), Seen()],
    )
    assert seen == [6, 12, 18, 24, 6, 12, 18, 24]
    assert not model.loss.variables
    assert not hasattr(model, "scheduled_released_scores")


def test_aurc_is_mixed_with_cross_entropy(logits, labels):
    plain = AURCLoss(released.twice_msp, from_logits=True)
    xe = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = losses.build("aurc_released", {"strength": 0.3})(labels, logits)
    expected = 0.7 * float(xe(labels, logits)) + 0.3 * float(plain(labels, logits))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_kde_term_has_no_gradient(logits, labels):
    loss = losses.build("kde_xe_released", {"kde_weight": 0.3})
    ours = KDECrossentropy(0.3, from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(float(ours(labels, logits)))
    xe = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain = grad(xe, labels, logits)
    np.testing.assert_allclose(grad(loss, labels, logits), plain, atol=1e-7)
    assert np.abs(grad(ours, labels, logits) - plain).max() > 1e-4


@pytest.mark.parametrize("variant", released.VARIANTS)
def test_dual_focal_takes_the_rival_of_its_variant(variant, logits, labels):
    logits[:4] = logits[:4, :1]  # equal probabilities have nothing below them
    p = softmax(logits.astype("float64"))
    p_y = p[np.arange(N), labels][:, None]
    others = np.where(np.arange(K) == labels[:, None], 0, p)
    rival = others.max(-1, keepdims=True)
    if variant == "discarded":
        rival = np.where(p_y < rival - 1e-9, 0, rival)
    if variant == "released":
        rival = np.where(p < p_y - 1e-9, p, 0).max(-1, keepdims=True)
    expected = ((1 - p_y + rival) ** 3 * -np.log(p_y))[:, 0]
    loss = losses.build("dual_focal", {"gamma": 3.0, "variant": variant})
    found = keras.ops.convert_to_numpy(loss.call(labels, logits))
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert np.isfinite(grad(loss, labels, logits)).all()
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert (again.variant, again.gamma) == (variant, 3)


def test_settings_of_the_released_losses_are_the_papers():
    assert settings("cifar100", "resnet50", "au_released").loss == {
        "csf": "msp",
        "quantile": 0.75,
        "smoothing": 0.005,
    }
    assert "public code" in settings("cifar10", "resnet50", "aurc_released").source


def test_a_run_with_the_released_au_is_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(training.models, "build", tiny_run.build)
    run = tiny_run.train(tmp_path / "run", epochs=1, loss="au_released")
    model = keras.models.load_model(run.folder / "model.keras")
    assert isinstance(model.loss, released.ReleasedAULoss)
    assert len(run.predictions("train").labels) == 64
