"""Losses inside models: fit, evaluate, save, load, and whether they train."""

import functools

import keras
import numpy as np
import pytest
from backends import FEW_STEPS, numpy
from digits import digits, small_mlp
from keras import ops
from loss_cases import CASES, CLASSES, FIRST, expected_values

import keras_selcal
from keras_selcal import AULoss, AURCLoss, FocalLoss, functional

crossentropy = functools.partial(
    keras.losses.SparseCategoricalCrossentropy, from_logits=True
)


def compiled(model, loss, learning_rate=0.05, **options):
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    model.compile(optimizer=optimizer, loss=loss, **options)
    return model


def model_for(loss, softmax=False, **options):
    """Returns a model of one layer, which compiles fast."""
    head = keras.layers.Dense(10, activation="softmax" if softmax else None)
    model = keras.Sequential(
        [keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), head]
    )
    return compiled(model, loss, **options)


def model_of_losses(losses):
    """Returns a model with an output for each loss, eager where it may be."""
    inputs = keras.layers.Input((8, 8, 1))
    flat = keras.layers.Flatten()(inputs)
    heads = {name: keras.layers.Dense(10, name=name)(flat) for name in losses}
    return compiled(keras.Model(inputs, heads), losses, **FEW_STEPS)


def test_evaluate_after_fit_gives_the_loss_of_the_predictions():
    """The last of the batches of 32 of 75 rows is short."""
    (x, y), _ = digits()
    x, y = x[:75], y[:75]
    losses = {}
    for case in FIRST:
        cls, options, _ = CASES[case]
        losses[case] = cls(from_logits=True, **options)
    model = model_of_losses(losses)
    labels = dict.fromkeys(losses, y)
    history = model.fit(x, labels, batch_size=32, epochs=2, verbose=0).history
    values = model.evaluate(x, labels, batch_size=75, verbose=0, return_dict=True)
    logits = model(x)
    for case in losses:
        assert np.isfinite(history[f"{case}_loss"]).all()
        expected = expected_values(case, numpy(logits[case]), y).mean()
        assert values[f"{case}_loss"] == pytest.approx(expected, rel=1e-4), case


@pytest.mark.parametrize("softmax", [True, False])
def test_labels_of_every_form_train(softmax):
    (x, y), _ = digits()
    x, y = x[:64], y[:64]
    loss = AULoss(csf="msp", from_logits=not softmax)
    model = model_for(loss, softmax)
    before = float(numpy(loss(y, model(x))))
    for labels in (y, y[:, None], np.eye(10, dtype="float32")[y], y):
        model.fit(x, labels, batch_size=32, verbose=0)
    assert float(numpy(loss(y, model(x)))) < before


# torch.compile reads `.grad` of what it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_training_equals_eager(monkeypatch):
    make_loss = AULoss
    if keras.backend.backend() == "torch":
        import torch

        # Traced and differentiated as always; only no C++ compiler is called.
        compiled = functools.partial(torch.compile, backend="aot_eager")
        monkeypatch.setattr(torch, "compile", compiled)
        # PyTorch traces a step several times: a loss of few operations.
        make_loss = FocalLoss
    (x, y), _ = digits()
    x, y = x[:64].reshape(64, -1), y[:64]
    losses = []
    for jit_compile in (True, False):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])
        model.compile("sgd", make_loss(from_logits=True), jit_compile=jit_compile)
        if keras.backend.backend() == "torch":
            # As after a step: without gradients the first one is compiled on its own.
            for parameter in model.parameters():
                parameter.grad = ops.zeros_like(parameter)
        history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_samples_of_weight_zero_are_not_ranked():
    (x, y), _ = digits()
    x, y = x[:32], y[:32]
    weight = (np.arange(32) % 2).astype("float32")
    model = model_for(AULoss(from_logits=True, reduction="sum"), **FEW_STEPS)
    kept = weight > 0
    whole = model.evaluate(x, y, sample_weight=weight, batch_size=32, verbose=0)
    part = model.evaluate(x[kept], y[kept], batch_size=32, verbose=0)
    assert whole == pytest.approx(part, rel=1e-5)


def test_class_weights_are_sample_weights():
    (x, y), _ = digits()
    x, y = x[:32], y[:32]
    weights = 1.0 + np.arange(10)
    losses = []
    for options in (
        {"class_weight": dict(enumerate(weights))},
        {"sample_weight": weights[y]},
    ):
        keras.utils.set_random_seed(0)
        model = model_for(AULoss(from_logits=True), **FEW_STEPS)
        history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, **options)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@keras.saving.register_keras_serializable("keras_selcal_tests")
def collision(probabilities):
    return ops.sum(ops.square(probabilities), axis=-1)


collision.support = lambda num_classes: (1 / num_classes, 1.0)


def test_saved_models_give_back_the_same_losses(tmp_path):
    losses = {
        "threshold": AULoss(
            "neg_entropy", threshold=-1.0, smoothing=0.2, from_logits=True
        ),
        "collision": AULoss(
            collision, quantile=0.5, base_loss=FocalLoss(gamma=3.0), from_logits=True
        ),
        "log": AURCLoss("margin", estimator="log", base_loss="brier", from_logits=True),
        **{name: cls(from_logits=True) for name, cls in CLASSES.items()},
    }
    (x, y), _ = digits()
    x, y = x[:64], y[:64]
    model = model_of_losses(losses)
    model.optimizer.build(model.trainable_variables)  # as a fit does
    logits = model(x)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    labels = dict.fromkeys(losses, y)
    # The loss of the only step is that of the saved weights.
    values = again.fit(x, labels, batch_size=64, verbose=0).history
    for name, loss in losses.items():
        assert type(again.loss[name]) is type(loss)
        assert again.loss[name].get_config() == loss.get_config()
        expected = float(numpy(loss(y, logits[name])))
        assert values[f"{name}_loss"] == pytest.approx([expected], rel=1e-5), name


def test_custom_csf_survives_with_its_support():
    loss = keras_selcal.losses.get(
        keras.saving.serialize_keras_object(AULoss(csf=collision))
    )
    assert loss.csf.support(4) == (0.25, 1.0)


# --- What training gives, on one backend --------------------------------------------

on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax",
    reason="claims on training are tested once, where steps are compiled",
)


@functools.cache
def network_for(make_loss, steps):
    # With a rate that falls to 0 the last steps do not decide the comparison.
    rate = keras.optimizers.schedules.CosineDecay(0.2, steps)
    return compiled(small_mlp(), make_loss(), rate)


@functools.cache
def trained(make_loss, seed, label_noise=0.0, epochs=40):
    """Returns test accuracy and ECE of a network trained with a loss."""
    (x, y), (x_test, y_test) = digits(label_noise, train=320)
    # All seeds use one model, which is reset: its steps are compiled once.
    model = network_for(make_loss, epochs * len(x) // 32)
    keras.utils.set_random_seed(seed)
    model.set_weights(small_mlp().get_weights())
    for variable in model.optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=0)
    logits = model.predict(x_test, batch_size=len(x_test), verbose=0)
    accuracy = np.mean(logits.argmax(-1) == y_test)
    return accuracy, functional.ece(y_test, logits, from_logits=True)


def au_msp():
    return AULoss(csf="msp", from_logits=True)


def au_paper():
    """The paper's ν, with constant weights."""
    return AULoss(csf="msp", smoothing=0.1, from_logits=True)


def au_margin():
    return AULoss(csf="margin", from_logits=True)


def au_neg_entropy():
    return AULoss(csf="neg_entropy", from_logits=True)


def mean_of_seeds(make_loss, **options):
    return np.mean([trained(make_loss, seed, **options) for seed in range(2)], 0)


@on_jax
@pytest.mark.parametrize("make_loss", [au_msp, au_paper, au_margin, au_neg_entropy])
def test_au_loss_trains_as_accurately_as_crossentropy(make_loss):
    accuracy, _ = mean_of_seeds(make_loss)
    baseline, _ = mean_of_seeds(crossentropy)
    assert accuracy > baseline - 0.015


@on_jax
def test_au_loss_calibrates_better_under_label_noise():
    accuracy, ece = mean_of_seeds(au_paper, label_noise=0.2)
    baseline_accuracy, baseline = mean_of_seeds(crossentropy, label_noise=0.2)
    assert ece < baseline
    assert accuracy > baseline_accuracy - 0.015


@on_jax
@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_full_weight_gradient_at_the_papers_smoothing_collapses():
    """Eq. gradientAU to the letter at ν = 0.1: ∇β outweighs learning from the start."""

    def full():
        return AULoss(smoothing=0.1, weight_gradient=1.0, from_logits=True)

    accuracy, _ = trained(full, 0)
    baseline, _ = trained(crossentropy, 0)
    assert accuracy < 0.6
    assert baseline > 0.9
