"""Runs on several devices, each in a process of its own, which runs this file:
`python test_distribution.py ARGUMENTS ALONE`, the last being a run of one device.
"""

import dataclasses
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tiny_run
from processes import finish, free_port, start

from recipes import cli, distribution, models, training
from recipes.runs import Run, RunError

BACKEND = keras.backend.backend()
# 67 = 2 · 32 + 3: the last batch cannot be shared evenly.
ARGUMENTS = ["train", "--dataset", "digits", "--model", "cnn", "--loss", "au"]
ARGUMENTS += ["--epochs", "2", "--batch-size", "32", "--subset", "67"]


def build(name, num_classes, input_shape):
    """Stands in for `models.build`: no dropout, since devices draw on their own."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        assert replicas == int(os.environ.get("REPLICAS", "1"))
    return tiny_run.build(name, num_classes, input_shape, dropout=False)


def run_tiny(arguments, patch):
    """Trains on validation and test sets that end with the same odd batch."""
    load = training.load_data

    def load_less(task):
        dataset = load(task)
        rows = np.arange(35)
        return dataclasses.replace(
            dataset, val=dataset.val[rows], test=dataset.test[rows]
        )

    patch.setattr(models, "build", build)
    patch.setattr(training, "load_data", load_less)
    return cli.main([*ARGUMENTS, *arguments])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the run on one device."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    with pytest.MonkeyPatch.context() as patch:
        assert run_tiny(["--out", str(folder)], patch) == 0
    assert "devices" not in Run(folder).config()
    return folder


def check(processes, folder, alone, devices):
    output = finish(*processes)
    assert f"devices is not given there and {devices} here" in output
    run, expected = Run(folder), Run(alone)
    assert run.config()["devices"] == devices
    assert len(run.history()) == 2
    if BACKEND == "jax":
        assert f"'batch': {devices}" in run.environment()["device"]
    for split in ("val", "test"):
        found, wanted = run.predictions(split), expected.predictions(split)
        np.testing.assert_allclose(found.logits, wanted.logits, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(found.labels, wanted.labels)
    for found, wanted in zip(run.history(), expected.history(), strict=True):
        del found["seconds"], wanted["seconds"]
        assert found == pytest.approx(wanted, abs=1e-4)
    model = keras.saving.load_model(run.folder / "model.keras")
    assert not any(getattr(layer, "synchronized", False) for layer in model.layers)


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_jax_devices(tmp_path, alone):
    check(
        [start(__file__, "--devices", 4, "--out", tmp_path, alone)], tmp_path, alone, 4
    )


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_jax_processes(tmp_path, alone):
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


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_tensorflow_replicas(tmp_path, alone):
    arguments = ["--devices", 2, "--out", tmp_path, alone]
    check([start(__file__, *arguments, REPLICAS="2")], tmp_path, alone, 2)


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch")
def test_torch_processes(tmp_path, alone):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, __file__, "--out", tmp_path, alone]
    check([start(*command, STOP_AFTER_AN_EPOCH="1")], tmp_path, alone, 2)


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch")
def test_torch_starts_its_processes(monkeypatch):
    commands = []
    monkeypatch.setattr(subprocess, "call", lambda c: commands.append(c) or 3)
    with pytest.raises(SystemExit, match="3"):
        cli.main([*ARGUMENTS, "--devices", "2"])
    assert commands[0][-len(ARGUMENTS) - 2 :] == [*ARGUMENTS, "--devices", "2"]
    assert "--nproc-per-node=2" in commands[0]


def test_what_cannot_be_done_is_told_in_a_line(monkeypatch):
    others = {name for name in distribution.NAMES.values()}
    other = min(others - {distribution.NAMES[BACKEND]})
    with pytest.raises(RunError, match=f"`distribution` must be auto or .*={other}$"):
        distribution.start(name=other)
    with pytest.raises(RunError, match=r"at most the batch size, 8\. .*devices=9$"):
        distribution.start(9, batch_size=8)
    if BACKEND == "torch":
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    there = 2 if BACKEND == "torch" else len(keras.distribution.list_devices())
    with pytest.raises(RunError, match=f"at most {there}, the number of those there"):
        distribution.start(there + 1)
    assert distribution.start() is distribution.ONE
    assert distribution.start(1) is distribution.ONE


def main(arguments, alone):
    """Trains, and asks for the run that one device has made."""
    save = Run.save_checkpoint

    def stop(run, state):
        save(run, state)
        raise RunError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        if "STOP_AFTER_AN_EPOCH" in os.environ:
            patch.setattr(Run, "save_checkpoint", stop)
            assert run_tiny(arguments, patch) == 1
            patch.setattr(Run, "save_checkpoint", save)
        assert run_tiny(arguments, patch) == 0
        assert run_tiny([*arguments, "--out", alone], patch) == 1


if __name__ == "__main__":
    main(sys.argv[1:-1], sys.argv[-1])
