"""Training: the paper's update, its schedule, and runs that were killed."""

import dataclasses
import errno
import functools
import os
import signal

import keras
import numpy as np
import pytest
import tiny_run
from backends import FEW_STEPS
from processes import finish, start

from keras_selcal import functional
from recipes import data, models, training
from recipes.data.pipeline import Batches
from recipes.evaluation import evaluate
from recipes.optimizers import TorchSGD
from recipes.runs import Run
from recipes.settings import settings, with_epochs
from recipes.tasks import RunError

# --- The update ---------------------------------------------------------------------

RATES = (0.1, 0.1, 0.02)
GRADIENTS = np.array([[1.0, -2.0], [0.5, 0.0], [-1.0, 3.0]], "float32")


def by_keras(optimizer, start):
    """Returns the weights after each step; the rate drops before the last."""
    weight = keras.Variable(start)
    seen = []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
        seen.append(keras.ops.convert_to_numpy(weight).copy())
    return np.array(seen)


def test_weight_decay_is_in_the_gradient():
    """λ = 0.5, μ = 0.9, worked by hand for w = 2 and w = −1.

    w = 2:  g = 1 + 1 = 2,           v = 2,            w = 2 − 0.2 = 1.8
            g = 0.5 + 0.9 = 1.4,     v = 1.8 + 1.4,    w = 1.8 − 0.32 = 1.48
            g = −1 + 0.74 = −0.26,   v = 2.88 − 0.26,  w = 1.48 − 0.0524
    """
    found = by_keras(TorchSGD(0.1, momentum=0.9, l2=0.5), [2.0, -1.0])
    expected = [[1.8, -0.75], [1.48, -0.4875], [1.4276, -0.495375]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="compares with PyTorch")
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_update_is_pytorchs(nesterov):
    import torch

    weight = torch.tensor([2.0, -1.0], requires_grad=True)
    options = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": nesterov}
    theirs = torch.optim.SGD([weight], 0.1, **options)
    expected = []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        theirs.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor(gradient)
        theirs.step()
        expected.append(weight.detach().numpy().copy())
    found = by_keras(TorchSGD(0.1, nesterov=nesterov), [2.0, -1.0])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_optimizer_is_saved():
    optimizer = TorchSGD(0.3, momentum=0.8, l2=0.01)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, TorchSGD)
    assert again.get_config() == optimizer.get_config()
    # Keras's own decay would come on top.
    assert again.weight_decay is None


def test_learning_rates():
    steps = settings("cifar10", "resnet50", "xe")
    found = [training.learning_rate(steps, epoch) for epoch in (0, 59, 60, 120, 199)]
    np.testing.assert_allclose(found, [0.1, 0.1, 0.02, 0.004, 0.0008])
    short = with_epochs(steps, 20)
    found = [training.learning_rate(short, epoch) for epoch in (5, 6, 12, 16)]
    np.testing.assert_allclose(found, [0.1, 0.02, 0.004, 0.0008])
    cosine = dataclasses.replace(steps, schedule="cosine", epochs=4)
    found = [training.learning_rate(cosine, epoch) for epoch in range(4)]
    np.testing.assert_allclose(found, 0.05 * (1 + np.cos(np.pi * np.arange(4) / 4)))


def test_decoupled_weight_decay_and_a_rate_that_falls_in_every_step():
    """By hand: w = 2 decays to 2·(1 − η·λ), then momentum adds −η·g.

    η = 0.1·(1 + cos(π·step/4))/2 for 2 epochs of 2 steps.
    """
    chosen = dataclasses.replace(
        settings("digits", "cnn", "xe"),
        **{"optimizer": "sgdw", "schedule": "smooth_cosine", "batch_size": 32},
        **{"epochs": 2, "weight_decay": 0.5, "momentum": 0.9},
    )
    optimizer = training._optimizer(chosen, 50)
    weight = keras.Variable(2.0)
    velocity, expected = 0.0, 2.0
    for step in range(4):
        rate = 0.05 * (1 + np.cos(np.pi * step / 4))
        expected -= rate * 0.5 * expected
        velocity = 0.9 * velocity - rate * 1.0
        expected += velocity
        optimizer.apply([keras.ops.convert_to_tensor(1.0)], [weight])
        found = float(keras.ops.convert_to_numpy(weight))
        assert found == pytest.approx(expected, rel=1e-5)


# --- Runs ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(models, "build", tiny_run.build)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "build", tiny_run.build)
        return tiny_run.train(tmp_path_factory.mktemp("runs") / "undisturbed")


def assert_same(run, expected):
    assert run.finished
    for split in ("val", "test"):
        found, wanted = run.predictions(split), expected.predictions(split)
        np.testing.assert_allclose(found.logits, wanted.logits, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(found.labels, wanted.labels)
    rows = zip(run.history(), expected.history(), strict=True)
    for found, wanted in rows:
        for name in ("seconds", "cpu_seconds"):
            del found[name], wanted[name]
        assert found == pytest.approx(wanted, abs=1e-5, nan_ok=True)


@pytest.mark.backend_free
def test_a_run_that_is_stopped_ends_like_an_undisturbed_one(
    tmp_path, undisturbed, monkeypatch, capfd
):
    """Stopped by a full disk, killed in an epoch, killed in a checkpoint."""
    folder, save = tmp_path / "run", np.savez

    def filling(path, *arrays, **named):
        if "last" in str(path) and (folder / "checkpoint" / "last.npz").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, *arrays, **named)

    monkeypatch.setattr(np, "savez", filling)
    with pytest.raises(RunError, match=r"last\.npz: No space left on device"):
        tiny_run.train(folder)
    monkeypatch.setattr(np, "savez", save)
    printed = finish(start(tiny_run.__file__, folder, "epoch", "checkpoint"))
    assert printed.count("continues after epoch 1 of 4") == 2
    assert printed.count(f"\n{-signal.SIGKILL} [1]\n") == 2, printed
    assert (folder / "checkpoint" / ".partial-last.npz").exists()
    assert_same(tiny_run.train(folder), undisturbed)
    assert "continues after epoch 1 of 4" in capfd.readouterr().out
    assert not (folder / "checkpoint").exists()


def test_validation_and_a_rising_weight_gradient_survive_a_stop(tmp_path, monkeypatch):
    changed = {
        "loss.weight_gradient": "0.05",
        "weight_gradient_rise": "1,3",
        "validate_every": "3",
        "warmup_epochs": "0",
    }
    compiled = functools.partialmethod(keras.Model.compile, **FEW_STEPS)
    monkeypatch.setattr(keras.Model, "compile", compiled)
    whole = tiny_run.train(tmp_path / "whole", changed=changed)
    validated = [row["epoch"] for row in whole.history() if row["val_loss"] > 0]
    assert validated == [3, 4]
    assert whole.environment()["best_epoch"] in validated
    shares, begin = [], training.RisingWeightGradient.on_epoch_begin

    def recording(callback, epoch, logs=None):
        if len(shares) == 2:
            shares.append("stopped")
            raise KeyboardInterrupt
        begin(callback, epoch, logs)
        shares.append(callback.model.loss.weight_gradient)

    monkeypatch.setattr(training.RisingWeightGradient, "on_epoch_begin", recording)
    with pytest.raises(KeyboardInterrupt):
        tiny_run.train(tmp_path / "stopped", changed=changed)
    resumed = tiny_run.train(tmp_path / "stopped", changed=changed)
    assert shares == [0.0, 0.0, "stopped", 0.025, 0.05]
    assert_same(resumed, whole)


AVERAGE = {"ema": "0.9", "optimizer": "sgdw", "schedule": "smooth_cosine"}


def test_averaged_weights_are_validated_and_kept_also_after_a_stop(
    tmp_path, monkeypatch
):
    changed = {**AVERAGE, "warmup_epochs": "0"}
    whole = tiny_run.train(tmp_path / "whole", epochs=3, changed=changed)
    best = whole.environment()["best_epoch"]
    rows = whole.history()
    for prefix, epoch in (("", best), ("last-", 3)):
        logits, labels = whole.predictions(f"{prefix}val")
        nll = functional.nll(labels, logits, from_logits=True)
        assert nll == pytest.approx(rows[epoch - 1]["val_nll"], rel=1e-4)
    plain = {**changed, "ema": "none"}
    other = tiny_run.train(tmp_path / "plain", epochs=3, changed=plain)
    for found, wanted in zip(rows, other.history(), strict=True):
        # The weights that are trained are the same, and those validated differ.
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        assert found["val_nll"] != pytest.approx(wanted["val_nll"], rel=1e-4)

    saved, save = [], Run.save_checkpoint

    def stopping(run, state, config):
        save(run, state, config)
        saved.append(state.epoch)
        if saved in ([1], [1, 2, 3]):
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save_checkpoint", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tiny_run.train(tmp_path / "stopped", epochs=3, changed=changed)
    resumed = tiny_run.train(tmp_path / "stopped", epochs=3, changed=changed)
    assert saved == [1, 2, 3]
    assert_same(resumed, whole)
    last, wanted = (run.predictions("last-test").logits for run in (resumed, whole))
    np.testing.assert_allclose(last, wanted, atol=1e-5)


@pytest.mark.backend_free
def test_the_chosen_model_has_the_lowest_validation_loss_after_warm_up(undisturbed):
    warmup = undisturbed.config()["settings"]["warmup_epochs"]
    losses = [row["val_loss"] for row in undisturbed.history()]
    best = warmup + int(np.argmin(losses[warmup:]))
    assert undisturbed.environment()["best_epoch"] == best + 1
    logits, labels = undisturbed.predictions("val")
    model = keras.saving.load_model(undisturbed.folder / "model.keras")
    assert isinstance(model.optimizer, TorchSGD)
    dataset = training.load_data(tiny_run.task())
    batches = Batches(dataset.val, dataset.preprocessing, 32)
    np.testing.assert_allclose(model.predict(batches, verbose=0), logits, atol=1e-5)
    np.testing.assert_array_equal(labels, dataset.val.y)
    value = model.evaluate(batches, verbose=0)[0]
    assert value == pytest.approx(losses[best], rel=1e-4)


@pytest.mark.parametrize(
    ("losses", "warmup", "best"),
    [
        ([1.0, 3.0, 2.0, 2.5], 1, 3),
        ([1.0, 3.0, 2.0, 2.0], 0, 1),
        ([1.0, 2.0, 1.5, 1.5], 2, 3),
        ([float("nan"), 3.0, float("nan"), 2.0], 0, 4),
        ([1.0, float("nan"), 3.0, 4.0], 1, 3),
    ],
)
def test_choice_of_the_checkpoint(losses, warmup, best):
    chosen = settings("digits", "cnn", "xe")
    for select in ("loss", "nll"):
        state = training.Checkpoint()
        rule = dataclasses.replace(chosen, warmup_epochs=warmup, select=select)
        for epoch, loss in enumerate(losses, 1):
            state.history.append({"epoch": epoch, f"val_{select}": loss})
            if training.improves(state, rule):
                state.best_epoch = epoch
        assert state.best_epoch == best


@pytest.mark.backend_free
def test_another_task_or_network_does_not_continue_a_checkpoint(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "write_history", stop)
    with pytest.raises(KeyboardInterrupt):
        tiny_run.train(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(models, "build", lambda *shape: tiny_run.build(*shape, False))
    with pytest.raises(RunError, match=r"checkpoint .* does not fit"):
        tiny_run.train(tmp_path)
    monkeypatch.setattr(models, "build", tiny_run.build)
    (tmp_path / "config.json").unlink()
    for change in ({"seed": 1}, {"loss": "xe"}):
        with pytest.raises(RunError, match=r"checkpoint .* another configuration"):
            tiny_run.train(tmp_path, **change)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.backend_free
def test_the_last_epoch_is_kept_beside_the_best(undisturbed):
    best = undisturbed.environment()["best_epoch"]
    rows = undisturbed.history()
    for prefix, epoch in (("", best), ("last-", 4)):
        assert len(undisturbed.predictions(f"{prefix}test").labels) == 997
        logits, labels = undisturbed.predictions(f"{prefix}val")
        nll = functional.nll(labels, logits, from_logits=True)
        assert nll == pytest.approx(rows[epoch - 1]["val_nll"], rel=1e-4)


@pytest.mark.parametrize("when", ["in training", "at the end"])
def test_a_run_that_is_not_finite_says_so_and_is_not_finished(
    when, tmp_path, monkeypatch
):
    changed = {"learning_rate": "1e30"} if when == "in training" else {}
    if when == "at the end":
        infinite = functools.partialmethod(_infinite, keras.Model.predict)
        monkeypatch.setattr(keras.Model, "predict", infinite)
    expected = {"in training": r"the loss of epoch \d is (nan|inf)"}
    expected["at the end"] = r"run has logits that are not finite \(last-val\)"
    with pytest.raises(RunError, match=f"^{expected[when]}: this training diverges"):
        tiny_run.train(tmp_path / "run", epochs=2, changed=changed)
    assert not Run(tmp_path / "run").finished


def _infinite(model, predict, *arguments, **options):
    return np.inf * predict(model, *arguments, **options)


@pytest.mark.backend_free
def test_a_finished_run_is_not_repeated(undisturbed, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("data of a finished run were loaded")

    monkeypatch.setattr(data, "load", refuse)
    files = [path for path in undisturbed.folder.iterdir() if path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    tiny_run.train(undisturbed.folder)
    assert {path: path.stat().st_mtime_ns for path in files} == before
    with pytest.raises(RunError, match="seed is 0 there and 1 here"):
        tiny_run.train(undisturbed.folder, seed=1)


@pytest.mark.backend_free
def test_metrics_come_from_the_logits(undisturbed):
    logits, labels = undisturbed.predictions("test")
    found = evaluate(undisturbed)
    assert found["accuracy"] == pytest.approx(100 * np.mean(logits.argmax(1) == labels))
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert found["nll"] == pytest.approx(
        -log_p[np.arange(997), labels].mean(), rel=1e-4
    )
    assert set(found) == {
        *("accuracy", "ece", "adaptive_ece", "cwece", "adaptive_cwece"),
        *("aurc", "nll", "brier"),
    }


def test_subsets_are_drawn_by_class():
    whole = training.load_data(tiny_run.task(subset=None)).train
    part = training.load_data(tiny_run.task()).train
    assert len(part) == 64
    share = np.bincount(whole.y, minlength=10) * 64 / len(whole)
    assert np.abs(np.bincount(part.y, minlength=10) - share).max() < 1
    with pytest.raises(RunError, match=r"`subset` must be from 10 to 640"):
        training.load_data(tiny_run.task(subset=5))
