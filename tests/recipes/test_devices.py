"""Runs on several devices, each in a process of its own, which runs this file:
`python test_devices.py ARGUMENTS ALONE`, where ALONE is a run of one device.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_run
from backends import compile_fast
from processes import finish, free_port, start

from recipes import cli, data, devices, models, training
from recipes.data.pipeline import Batches
from recipes.request import RunError
from recipes.runs import Run

BACKEND = keras.backend.backend()
# 68 = 2 · 32 + 4 and 36 = 32 + 4: the last batch is short.
ARGUMENTS = ["train", "--dataset", "digits", "--model", "cnn", "--loss", "au"]
ARGUMENTS += ["--epochs", "2", "--batch-size", "32", "--subset", "68"]


def build(name, num_classes, input_shape):
    """Stands in for `models.build`: without dropout, which devices draw on their own.

    On PyTorch, batch normalization uses each process's share, so that only networks
    without it give the results of one device.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        assert replicas in (1, int(os.environ.get("REPLICAS", "1")))
    if BACKEND == "torch":
        layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes)]
        return keras.Sequential([keras.layers.Input(input_shape), *layers])
    return tiny_run.build(name, num_classes, input_shape, dropout=False)


def run_tiny(arguments, patch, build=build):
    """Trains with small validation and test sets."""
    load = training.load_data

    def load_less(task, dataset):
        dataset = load(task, dataset)
        rows = np.arange(36)
        return dataclasses.replace(
            dataset, val=dataset.val[rows], test=dataset.test[rows]
        )

    with patch.context() as inner:
        inner.setattr(models, "build", build)
        inner.setattr(training, "load_data", load_less)
        return cli.main([*ARGUMENTS, *map(str, arguments)])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the run on one device."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    with pytest.MonkeyPatch.context() as patch:
        assert run_tiny(["--out", folder], patch) == 0
    assert "devices" not in Run(folder).config()
    return folder


def check(processes, folder, alone, count):
    output = finish(*processes)
    assert f"devices is not given there and {count} here" in output
    run, expected = Run(folder), Run(alone)
    assert run.config()["devices"] == count
    assert len(run.history()) == 2
    if BACKEND == "jax":
        assert f"'batch': {count}" in run.environment()["device"]
    for split in ("val", "test"):
        found, wanted = run.predictions(split), expected.predictions(split)
        np.testing.assert_allclose(found.logits, wanted.logits, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(found.labels, wanted.labels)
    for found, wanted in zip(run.history(), expected.history(), strict=True):
        del found["seconds"], wanted["seconds"]
        assert found == pytest.approx(wanted, abs=1e-4)
    model = keras.saving.load_model(run.folder / "model.keras")
    assert not any(getattr(layer, "synchronized", False) for layer in model.layers)


@pytest.mark.skipif(BACKEND != "jax", reason="for JAX")
def test_jax_devices_give_the_results_of_one(tmp_path, alone):
    process = start(__file__, "--devices", 4, "--out", tmp_path, alone)
    check([process], tmp_path, alone, 4)


@pytest.mark.skipif(BACKEND != "jax", reason="for JAX")
def test_jax_processes_give_the_results_of_one(tmp_path, alone):
    environment = {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"localhost:{free_port()}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    }
    processes = [
        start(
            *(__file__, "--out", tmp_path, alone),
            KERAS_DISTRIBUTION_PROCESS_ID=str(rank),
            **environment,
        )
        for rank in range(2)
    ]
    check(processes, tmp_path, alone, 2)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="for TensorFlow")
def test_tensorflow_replicas_give_the_results_of_one(tmp_path, alone):
    arguments = ["--devices", 2, "--out", tmp_path, alone]
    check([start(__file__, *arguments, REPLICAS="2")], tmp_path, alone, 2)


@pytest.mark.skipif(BACKEND != "torch", reason="for PyTorch")
def test_torch_processes_give_the_results_of_one_and_can_be_stopped(tmp_path, alone):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run, stopped = tmp_path / "run", tmp_path / "stopped"
    process = start(*launcher, __file__, "--out", run, alone, STOPPED=str(stopped))
    check([process], run, alone, 2)
    # With batch normalization: not the results of one device, but always the same.
    whole, resumed = Run(f"{stopped}-whole"), Run(f"{stopped}-resumed")
    for split in ("val", "test"):
        found, expected = resumed.predictions(split), whole.predictions(split)
        np.testing.assert_array_equal(found.logits, expected.logits)


@pytest.mark.skipif(BACKEND != "torch", reason="for PyTorch")
def test_torch_starts_its_processes(monkeypatch):
    commands = []
    monkeypatch.setattr(subprocess, "call", lambda c: commands.append(c) or 3)
    with pytest.raises(SystemExit, match="3"):
        cli.main([*ARGUMENTS, "--devices", "2"])
    assert commands[0][-len(ARGUMENTS) :] == ARGUMENTS
    assert "--nproc-per-node=2" in commands[0]


@pytest.mark.parametrize(("samples", "sizes"), [(67, [16, 16]), (70, [16, 16, 2])])
def test_all_shares_of_a_batch_have_one_size(samples, sizes):
    class Four(devices.Devices):
        count, processes = 4, 2

    split = data.Split(np.zeros((samples, 4, 4, 1), "uint8"), np.arange(samples))
    preprocessing = data.Preprocessing((4, 4), (0.0,), (1.0,))
    batches = Batches(split, preprocessing, 32)
    found = []
    for rank in range(2):
        one = Four()
        one.rank = rank
        shares = one.shares(batches)
        found.append([shares[index][1] for index in range(len(shares))])
        assert [len(labels) for labels in found[-1]] == sizes
    joined = [np.concatenate(pair) for pair in zip(*found, strict=True)]
    kept = samples // 4 * 4 if len(sizes) == 3 else 64
    np.testing.assert_array_equal(np.concatenate(joined), np.arange(kept))


def test_what_cannot_be_done_is_told_in_a_line(monkeypatch):
    with pytest.raises(RunError, match=r"divide the batch size, 8\. .*devices=3$"):
        devices.start(3, 8)
    if BACKEND == "torch":
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    there = 2 if BACKEND == "torch" else len(keras.distribution.list_devices())
    with pytest.raises(RunError, match=f"at most {there}, the number of devices"):
        devices.start(there + 1, there + 1)
    assert devices.start(None, 8) is devices.ONE
    assert devices.start(1, 8) is devices.ONE


def main(arguments, alone):
    """Trains, and asks for the run that one device has made."""
    with pytest.MonkeyPatch.context() as patch:
        assert run_tiny(arguments, patch) == 0
        assert run_tiny([*arguments, "--out", alone], patch) == 1
        if "STOPPED" not in os.environ:
            return
        end_epoch = training._Training.end_epoch

        def stop(*state):
            end_epoch(*state)
            raise RunError("stopped")

        def with_normalization(*shape):
            return tiny_run.build(*shape, dropout=False)

        for name in ("whole", "resumed"):
            folder = ["--out", Path(f"{os.environ['STOPPED']}-{name}")]
            if name == "resumed":
                with patch.context() as inner:
                    inner.setattr(training._Training, "end_epoch", stop)
                    assert run_tiny(folder, patch, with_normalization) == 1
            assert run_tiny(folder, patch, with_normalization) == 0


if __name__ == "__main__":
    compile_fast()
    main(sys.argv[1:-1], sys.argv[-1])
