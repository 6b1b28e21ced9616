"""The memory of the scores: what is ranked, what is remembered, what is saved."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_selcal import AULoss, CDFMemory, LossSchedule
from keras_selcal._memory import ScoreMemory
from keras_selcal.functional import au_weights
from keras_selcal.functional.cdf import cell_quantile
from keras_selcal.functional.weights import region_weights

N, K, SIZE = 24, 5, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, K), scale=1.5).astype("float32")
Y = RNG.integers(0, K, N)
# A batch of whole numbers, one of zeros and ones, one of ones.
WEIGHT = np.r_[np.arange(SIZE) % 4, np.arange(SIZE) % 2, np.ones(SIZE)].astype(
    "float32"
)
BATCHES = [slice(start, start + SIZE) for start in range(0, N, SIZE)]
BACKEND = keras.backend.backend()


def quantile(u, count, q):
    """NumPy's rule for fractional counts: the mean of the sorted copies' values over
    positions from q(n − 1) to one further.
    """
    order = np.argsort(u)
    edges = np.cumsum(count[order])
    start = q * (edges[-1] - 1)
    inside = np.clip(edges, start, start + 1)
    return np.sum(u[order] * np.diff(inside, prepend=start))


def reference(past, batch, coverage=0.75, smoothing=0.1, num_bins=64, momentum=0.5):
    """Returns the loss of a batch, ranked with those of the past, and the counts."""
    p = np.exp(X.astype("float64"))
    p /= p.sum(axis=1, keepdims=True)
    u = p.max(axis=1)
    count = np.zeros(N)
    for age, other in enumerate([batch, *reversed(past)]):
        count[other] += momentum**age * WEIGHT[other]
    counts = np.histogram(u, num_bins, (0, 1), weights=count)[0]
    n = count.sum()

    def cdf(at):
        steps = (np.asarray(at)[..., None] - (np.arange(num_bins) + 0.5) / num_bins) / (
            smoothing
        )
        return np.minimum((counts / n / (1 + np.exp(-steps))).sum(-1), n / (n + 1))

    tau = quantile(u, count, coverage)
    beta = -np.log1p(-cdf(np.minimum(u[batch], tau))) / cdf(tau)
    losses = -np.log(p[np.arange(N), Y])[batch]
    return np.mean(WEIGHT[batch] * beta * losses), counts


def model_of(loss=None, rate=0.0, jit_compile="auto"):
    """Returns a model of the logits X, which a rate of 0 leaves as they are."""
    model = keras.Sequential([keras.Input((K,)), keras.layers.Dense(K, use_bias=False)])
    model.set_weights([np.eye(K, dtype="float32")])
    optimizer = keras.optimizers.SGD(rate)
    loss = AULoss(from_logits=True) if loss is None else loss
    model.compile(optimizer, loss, jit_compile=jit_compile)
    return model


def fit(model, *callbacks, epochs=1, **arguments):
    return model.fit(
        X,
        Y,
        SIZE,
        epochs,
        sample_weight=WEIGHT,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        **arguments,
    ).history


def evaluate(model, batch=slice(0, SIZE)):
    return model.evaluate(X[batch], Y[batch], SIZE, 0, WEIGHT[batch])


class Meddler(keras.callbacks.Callback):
    """Evaluates where no one else knows of it."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            evaluate(self.model)
            self.model.predict(X, verbose=0)
            self.model.reset_metrics()


def test_training_ranks_by_past_batches_and_remembers_only_them():
    # The other tests do it as Keras does by default: without XLA on TensorFlow.
    model = model_of(jit_compile=BACKEND != "torch")
    moved = {"coverage": (0.4, 0.9), "smoothing": (0.3, 0.1)}
    schedule = LossSchedule(**{name: moved[name].__getitem__ for name in moved})
    history = fit(
        model,
        *(Meddler(), CDFMemory(momentum=0.5), schedule),
        epochs=2,
        validation_data=(X[BATCHES[0]], Y[BATCHES[0]], WEIGHT[BATCHES[0]]),
    )
    past = []
    for epoch in range(2):
        options = {name: values[epoch] for name, values in moved.items()}
        expected = []
        for batch in BATCHES:
            value, counts = reference(past, batch, **options)
            expected.append(value)
            past.append(batch)
        # Validation ranks as a next batch would be, and leaves no trace.
        validation, _ = reference(past, BATCHES[0], **options)
        assert history["val_loss"][epoch] == pytest.approx(validation, rel=1e-3)
        # The meddler has taken the first batch out of the mean.
        assert history["loss"][epoch] == pytest.approx(np.mean(expected[1:]), rel=1e-3)
    remembered = model.loss.memory.counts
    np.testing.assert_allclose(remembered.sum(axis=1), counts, rtol=1e-5, atol=1e-6)
    assert not any("memory" in name for name in history)
    assert [metric.name for metric in model.metrics] == ["loss"]
    assert "train_step" not in vars(model)
    assert evaluate(model) == pytest.approx(validation, rel=1e-3)

    # Without the callback the memory stays; what is compiled again knows the new one.
    fit(model)
    assert model.loss.memory.counts is remembered
    fit(model, CDFMemory(momentum=0.5))
    past += BATCHES
    value, counts = reference(past, BATCHES[0], **options)
    assert evaluate(model) == pytest.approx(value, rel=1e-3)


def test_saved_models_rank_and_go_on_as_they_would_have(tmp_path):
    path, checkpoint = tmp_path / "m.keras", tmp_path / "{epoch}.keras"
    model = model_of(rate=0.5)
    save = keras.callbacks.ModelCheckpoint(str(checkpoint))
    fit(model, CDFMemory(momentum=0.9), save, epochs=2)
    model.save(path)
    for file in (path, tmp_path / "2.keras"):
        loaded = keras.saving.load_model(file)
        assert loaded.loss.get_config() == model.loss.get_config()
        assert evaluate(loaded) == pytest.approx(evaluate(model), rel=1e-6)
    resumed = keras.saving.load_model(tmp_path / "1.keras")
    assert resumed.loss.memory.counts.sum() < model.loss.memory.counts.sum()
    fit(resumed, CDFMemory(momentum=0.9))
    for mine, theirs in zip(resumed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    np.testing.assert_allclose(
        resumed.loss.memory.counts, model.loss.memory.counts, rtol=1e-5, atol=1e-6
    )


def test_an_interrupted_fit_is_tidied_by_the_next():
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    model = model_of()
    with pytest.raises(KeyboardInterrupt):
        fit(model, CDFMemory(momentum=0.5), Interrupt())
    fit(model, CDFMemory(momentum=0.5))
    _, counts = reference([*BATCHES, *BATCHES[:2]], BATCHES[2])
    found = model.loss.memory.counts.sum(axis=1)
    np.testing.assert_allclose(found, counts, rtol=1e-5, atol=1e-6)
    assert [metric.name for metric in model.metrics] == ["loss"]
    assert "train_step" not in vars(model)


def test_nothing_is_remembered_without_training():
    model = model_of()
    memory = CDFMemory(momentum=0.5)
    model.evaluate(X, Y, N, 0, callbacks=[memory])
    assert model.loss.memory is None
    step = model.train_step
    model.train_step = lambda *args: step(*args)
    mine = model.train_step
    fit(model, memory)
    assert model.loss.memory.counts.sum() > 0
    assert model.train_step is mine


@pytest.mark.parametrize(
    ("options", "support"),
    [
        ({"coverage": 0.3, "smoothing": 1.0, "num_bins": 10}, (0.0, 1.0)),
        ({"threshold": -0.5, "coverage": None}, (-2.0, 1.5)),
    ],
)
def test_the_first_batch_is_ranked_as_without_a_memory(options, support):
    options = {"coverage": 0.75, "threshold": None, "smoothing": 0.1, **options}
    options.setdefault("num_bins", 64)
    scores = ops.convert_to_tensor(RNG.uniform(*support, N).astype("float32"))
    memory = ScoreMemory(options["num_bins"], 0.9)
    mine = region_weights(
        scores,
        support=support,
        sample_weight=WEIGHT,
        with_past=memory.with_batch,
        **options,
    )
    theirs = au_weights(scores, support=support, sample_weight=WEIGHT, **options)
    # τ is that of a cell, 1/8192 off at most.
    np.testing.assert_allclose(
        ops.convert_to_numpy(mine), ops.convert_to_numpy(theirs), rtol=2e-3
    )


def test_quantile_of_cells():
    cells = RNG.integers(0, 32, 32) * (RNG.random(32) < 0.3)
    copies = np.repeat((np.arange(32) + 0.5) / 32, cells)
    for q in (0.0, 0.3, 0.75, 0.999, 1.0):
        found = cell_quantile(ops.convert_to_tensor(cells.astype("float32")), q)
        assert float(found) == pytest.approx(np.quantile(copies, q), rel=1e-5)
    assert float(cell_quantile(ops.zeros(32), 0.5)) == 0.0


@pytest.mark.parametrize("momentum", [1.0, -0.1, "high", None, float("nan")])
def test_bad_momentum(momentum):
    with pytest.raises(ValueError, match=r"`momentum` must be a number in \[0, 1\)"):
        CDFMemory(momentum)


def test_bad_losses_and_configs():
    with pytest.raises(ValueError, match=r"`model\.loss` must be an AULoss"):
        fit(model_of("sparse_categorical_crossentropy"), CDFMemory(0.9))
    config = ScoreMemory(10, 0.9).get_config()
    assert AULoss(num_bins=10, memory=config).get_config()["memory"] == config
    for memory in (config, {**config, "counts": "AAAA"}):
        with pytest.raises(ValueError, match=r"`counts` must be what a memory of"):
            AULoss(num_bins=30, memory=memory)
