"""Runs on several devices, in a process of its own, which runs this file:
`python test_devices.py ARGUMENTS ALONE`, where ALONE is a run of one device.
"""

import dataclasses
import sys

import keras
import numpy as np
import pytest
import tiny_run
from backends import compile_fast
from processes import finish, start

from recipes import cli, data, devices, models, training
from recipes.data.pipeline import Batches
from recipes.runs import Run
from recipes.tasks import RunError

BACKEND = keras.backend.backend()
# 68 = 2 · 32 + 4 and 36 = 32 + 4: the last batch is short.
ARGUMENTS = ["train", "--dataset", "digits", "--model", "cnn", "--loss", "au"]
ARGUMENTS += ["--epochs", "2", "--batch-size", "32", "--subset", "68"]


def build(name, num_classes, input_shape):
    """Stands in for `models.build`: without dropout, which each device draws."""
    return tiny_run.build(name, num_classes, input_shape, dropout=False)


def run_tiny(arguments, patch):
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


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX shares batches")
def test_four_devices_give_the_results_of_one(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    with pytest.MonkeyPatch.context() as patch:
        assert run_tiny(["--out", alone], patch) == 0
    assert "devices" not in Run(alone).config()
    output = finish(start(__file__, "--devices", 4, "--out", together, alone))
    assert "devices is not given there and 4 here" in output
    run, expected = Run(together), Run(alone)
    assert run.config()["devices"] == 4
    for split in ("val", "test", "last-test"):
        found, wanted = run.predictions(split), expected.predictions(split)
        np.testing.assert_allclose(found.logits, wanted.logits, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(found.labels, wanted.labels)
    for found, wanted in zip(run.history(), expected.history(), strict=True):
        del found["seconds"], wanted["seconds"]
        for row in (found, wanted):
            row.pop("cpu_seconds", None)
        assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("samples", "kept"), [(67, 64), (70, 68)])
def test_rows_that_devices_cannot_share_are_left_out(samples, kept):
    split = data.Split(np.zeros((samples, 4, 4, 1), "uint8"), np.arange(samples))
    preprocessing = data.Preprocessing((4, 4), (0.0,), (1.0,))
    batches = devices.even(Batches(split, preprocessing, 32), 4)
    labels = [batches[index][1] for index in range(len(batches))]
    np.testing.assert_array_equal(np.concatenate(labels), np.arange(kept))
    assert all(len(part) % 4 == 0 for part in labels)


def test_what_cannot_be_done_is_told_in_a_line():
    devices.check(1, 8)
    if BACKEND != "jax":
        with pytest.raises(RunError, match=rf"be 1 on {BACKEND}: only JAX .*devices=2"):
            devices.check(2, 8)
        return
    with pytest.raises(RunError, match=r"divide the batch size, 8\. .*devices=3$"):
        devices.check(3, 8)
    there = len(keras.distribution.list_devices())
    with pytest.raises(RunError, match=f"at most {there}, the number of devices"):
        devices.check(there + 1, there + 1)


if __name__ == "__main__":
    compile_fast()
    with pytest.MonkeyPatch.context() as patch:
        *arguments, alone = sys.argv[1:]
        assert run_tiny(arguments, patch) == 0
        # Another number of devices is another run.
        assert run_tiny([*arguments, "--out", alone], patch) == 1
