"""One step of training, alone and split over devices or processes: run by
`test_distributed.py` in a process of its own, `python distributed_worker.py NAME`.

Each function fails unless loss, gradient and metrics are those of the undivided batch.
"""

import gc
import os
import pickle
import sys

import keras
import numpy as np
from backends import share_context

from keras_selcal import AULoss, AURCLoss, KDECrossentropy
from keras_selcal import metrics as metrics_module

N, K, FEATURES = 64, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, FEATURES)).astype("float32")
Y = RNG.integers(0, K, N)
# Weights that the splits share unequally, zeros among them.
WEIGHT = (np.arange(N) // 8 % 4).astype("float32")
KERNEL = RNG.normal(size=(FEATURES, K), scale=2.0).astype("float32")


def make_losses():
    """Returns every loss that ranks or compares samples; on JAX, which works on the
    global batch, also those that have no `synchronized`.
    """
    losses = {
        "au": AULoss(from_logits=True, synchronized=True),
        "au, w = 0.5": AULoss(
            from_logits=True, weight_gradient=0.5, smoothing=1.0, synchronized=True
        ),
        "au, whole": AULoss(
            from_logits=True, weight_gradient=1.0, through="cdf", synchronized=True
        ),
    }
    if keras.backend.backend() == "jax":
        losses["aurc"] = AURCLoss(from_logits=True)
        losses["kde"] = KDECrossentropy(from_logits=True)
    return losses


def make_metrics():
    """Returns a metric of each kind of state."""
    return [
        metrics_module.ExpectedCalibrationError(from_logits=True),
        metrics_module.ExpectedCalibrationError(
            binning="adaptive", from_logits=True, name="adaptive"
        ),
        metrics_module.ClasswiseCalibrationError(from_logits=True),
        metrics_module.BrierScore(from_logits=True),
        metrics_module.ExcessAURC(from_logits=True),
        metrics_module.CoverageAtRisk(0.3, from_logits=True),
    ]


def linear():
    """Returns the network of all steps."""
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(K, use_bias=False)]
    )
    model.set_weights([KERNEL])
    return model


def fit_once(loss, metrics=(), share=slice(None), run_eagerly=False):
    """Returns the logs and the gradient of one step of `fit`.

    Args:
        loss: a loss.
        metrics: of the batch.
        share: what this process gives to the batch.
        run_eagerly: as in `compile`.
    """
    model = linear()
    model.compile(
        keras.optimizers.SGD(1.0),
        loss,
        weighted_metrics=list(metrics),
        run_eagerly=run_eagerly,
    )
    x, y, weight = X[share], Y[share], WEIGHT[share]
    options = {"batch_size": len(x), "shuffle": False, "verbose": 0}
    history = model.fit(x, y, sample_weight=weight, **options).history
    logs = {name: values[0] for name, values in history.items()}
    return logs, KERNEL - np.asarray(model.get_weights()[0])


def results(share=slice(None), only=None, run_eagerly=False):
    """Returns what `fit_once` does for each loss, with all metrics for the first.

    Or for the loss that is called `only`, without metrics.
    """
    if only is not None:
        return {only: fit_once(make_losses()[only], share=share)}
    found, metrics = {}, make_metrics()
    for name, loss in make_losses().items():
        found[name] = fit_once(loss, metrics, share, run_eagerly)
        metrics = []
    return found


def check(ours, theirs):
    for name, (logs, gradient) in ours.items():
        expected_logs, expected_gradient = theirs[name]
        assert set(logs) == set(expected_logs)
        for key, value in logs.items():
            np.testing.assert_allclose(
                value, expected_logs[key], rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}"
            )
        np.testing.assert_allclose(
            gradient, expected_gradient, rtol=1e-5, atol=1e-5, err_msg=name
        )


def jax_devices():
    """`DataParallel` and a 2-D `ModelParallel` layout over 4 devices."""
    expected = results()
    with keras.distribution.DataParallel().scope():
        check(results(), expected)
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"))
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*kernel"] = (None, None)
    parallel = keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch"
    )
    with parallel.scope():
        check(results(only="kde"), expected)


def jax_processes():
    """`DataParallel` over 2 processes of 2 devices each."""
    import jax

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(os.environ["COORDINATOR"], size, rank)
    with keras.distribution.DataParallel(auto_shard_dataset=False).scope():
        found = results(slice(rank * N // size, (rank + 1) * N // size), "au")
    with open(os.environ["RESULTS"], "rb") as file:
        check(found, pickle.load(file))


def jax_alone():
    """Writes what `jax_processes` is to find."""
    with open(os.environ["RESULTS"], "wb") as file:
        pickle.dump(results(only="au"), file)


def tensorflow_replicas():
    """`MirroredStrategy` over 2 virtual CPUs: each one more is traced again."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    virtual = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, virtual)
    # Eagerly, since tracing takes nearly all of the time.
    expected = results(run_eagerly=True)
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(2)])
    with strategy.scope():
        check(results(), expected)
        # The ranks in each replica's own share are different.
        own = fit_once(AULoss(from_logits=True))[0]["loss"]
        # The last batch has one sample, and one of the replicas none.
        for loss in (make_losses()["au, whole"], AURCLoss(from_logits=True)):
            model = linear()
            model.compile("sgd", loss)
            history = model.fit(X[8:25], Y[8:25], batch_size=16, verbose=0).history
            assert np.isfinite(history["loss"][0])
            assert np.isfinite(model.get_weights()[0]).all()
    assert abs(own - expected["au"][0]["loss"]) > 1e-3


def torch_processes():
    """`DistributedDataParallel` over 2 processes."""
    import torch.distributed as dist

    expected = results()
    dist.init_process_group("gloo")
    torch_losses(expected)
    torch_empty_share()
    # A parallel model must not outlive the group, or PyTorch deadlocks: it waits, with
    # the lock of the interpreter, for a thread that waits for this lock.
    gc.collect()
    dist.destroy_process_group()


def torch_losses(expected):
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    share = slice(rank * N // size, (rank + 1) * N // size)
    for name, loss in make_losses().items():
        model = linear()
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        value = loss(Y[share], parallel(torch.tensor(X[share])), WEIGHT[share])
        value.backward()
        total = value.detach().clone()
        dist.all_reduce(total)
        gradient = model.trainable_weights[0].value.grad.numpy()
        logs = {**expected[name][0], "loss": float(total) / size}
        check({name: (logs, gradient)}, expected)


def torch_empty_share():
    """One process has all samples, the other none; neither hangs."""
    import torch
    import torch.distributed as dist

    logits = X @ KERNEL
    mine = slice(None) if dist.get_rank() == 0 else slice(0)
    for loss in make_losses().values():
        z = torch.tensor(logits[mine], requires_grad=True)
        value = loss(Y[mine], z, WEIGHT[mine])
        value.backward()
        if dist.get_rank() == 1:
            assert float(value.detach()) == 0.0
        else:
            assert np.isfinite(float(value.detach()))
            assert torch.isfinite(z.grad).all()


if __name__ == "__main__":
    share_context()
    globals()[sys.argv[1]]()
