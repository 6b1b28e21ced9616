"""One step of training, alone and split over devices or processes: run by
`test_distributed.py` in a process of its own, `python distributed_worker.py NAME`.

Each function fails unless loss, gradient and metrics are those of the undivided batch.
"""

import gc
import os
import sys

import keras
import numpy as np
from backends import compile_fast
from streaming import KINDS, make

from keras_selcal import AULoss, AURCLoss, KDECrossentropy

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
        "half": AULoss(
            from_logits=True, weight_gradient=0.5, smoothing=1.0, synchronized=True
        ),
        "whole": AULoss(
            from_logits=True, weight_gradient=1.0, through="cdf", synchronized=True
        ),
    }
    if keras.backend.backend() == "jax":
        losses["aurc"] = AURCLoss(from_logits=True)
        losses["kde"] = KDECrossentropy(from_logits=True)
    return losses


def make_metrics():
    """Returns a metric of each kind of state."""
    return [make(case, from_logits=True, name=case) for case in KINDS]


def linear(losses):
    """Returns a network with an output for each loss: it is traced once for all."""
    inputs = keras.Input((FEATURES,))
    heads = {name: keras.layers.Dense(K, use_bias=False, name=name) for name in losses}
    model = keras.Model(inputs, {name: head(inputs) for name, head in heads.items()})
    model.set_weights([KERNEL] * len(heads))
    return model


def kernels(model):
    """Returns the kernel of each output."""
    return {name: model.get_layer(name).kernel.value for name in model.output_names}


def results(losses, metrics=(), share=slice(None), run_eagerly=False):
    """Returns the logs and the gradients of one step of `fit`.

    Args:
        losses: by name.
        metrics: of the batch, by the first loss's output.
        share: what this process gives to the batch.
        run_eagerly: as in `compile`.
    """
    model = linear(losses)
    model.compile(
        keras.optimizers.SGD(1.0),
        losses,
        weighted_metrics={next(iter(losses)): list(metrics)},
        run_eagerly=run_eagerly,
    )
    x, y, weight = X[share], Y[share], WEIGHT[share]
    options = {"batch_size": len(x), "shuffle": False, "verbose": 0}
    labels = dict.fromkeys(losses, y)
    history = model.fit(x, labels, sample_weight=weight, **options).history
    logs = {name: values[0] for name, values in history.items()}
    total = logs.pop("loss")
    if len(losses) == 1:
        logs = {f"{name}_loss": total for name in losses}
    gradients = {
        name: KERNEL - keras.ops.convert_to_numpy(kernel)
        for name, kernel in kernels(model).items()
    }
    return logs, gradients


def of_losses(found, names):
    """Returns the part of results that belongs to some losses."""
    logs, gradients = found
    losses = {f"{name}_loss": logs[f"{name}_loss"] for name in names}
    return losses, {name: gradients[name] for name in names}


def check(ours, theirs):
    for found, expected, atol in zip(ours, theirs, (1e-6, 1e-5), strict=True):
        assert set(found) == set(expected)
        for name, value in found.items():
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-5, atol=atol, err_msg=name
            )


def jax_devices():
    """`DataParallel` and a 2-D `ModelParallel` layout over 4 devices."""
    losses = make_losses()
    expected = results(losses, make_metrics())
    with keras.distribution.DataParallel().scope():
        check(results(losses, make_metrics()), expected)
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"))
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*kernel"] = (None, None)
    parallel = keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch"
    )
    with parallel.scope():
        check(results({"kde": losses["kde"]}), of_losses(expected, ["kde"]))


def jax_processes():
    """`DataParallel` over 2 processes of 2 devices each."""
    import jax

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(os.environ["COORDINATOR"], size, rank)
    losses = {"au": make_losses()["au"]}
    expected = results(losses)
    with keras.distribution.DataParallel(auto_shard_dataset=False).scope():
        check(results(losses, share=share(rank, size)), expected)


def share(rank, size):
    """Returns the rows of a process."""
    return slice(rank * N // size, (rank + 1) * N // size)


def tensorflow_replicas():
    """`MirroredStrategy` over 2 virtual CPUs: each one more is traced again."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    virtual = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, virtual)
    losses = make_losses()
    losses["own"] = AULoss(from_logits=True)
    # Eagerly, since tracing takes nearly all of the time.
    expected = results(losses, make_metrics(), run_eagerly=True)
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(2)])
    with strategy.scope():
        found = results(losses, make_metrics())
        # The last batch has one sample, and one of the replicas none.
        losses = {"whole": losses["whole"], "aurc": AURCLoss(from_logits=True)}
        model = linear(losses)
        model.compile("sgd", losses)
        labels = dict.fromkeys(losses, Y[8:25])
        history = model.fit(X[8:25], labels, batch_size=16, verbose=0).history
        assert np.isfinite(history["loss"][0])
        assert all(np.isfinite(kernel).all() for kernel in model.get_weights())
    # The ranks in each replica's own share are different.
    assert abs(found[0]["own_loss"] - expected[0]["own_loss"]) > 1e-3
    for logs, gradients in (found, expected):
        del logs["own_loss"], gradients["own"]
    check(found, expected)


def torch_processes():
    """`DistributedDataParallel` over 2 processes."""
    import torch.distributed as dist

    losses = make_losses()
    expected = results(losses)
    dist.init_process_group("gloo")
    check(torch_results(losses), expected)
    torch_empty_share(losses)
    # A parallel model must not outlive the group, or PyTorch deadlocks: it waits, with
    # the lock of the interpreter, for a thread that waits for this lock.
    gc.collect()
    dist.destroy_process_group()


def torch_results(losses):
    """Returns `results` of a batch that the processes share."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = share(rank, size)
    model = linear(losses)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    outputs = parallel(torch.tensor(X[mine]))
    values = {
        name: loss(Y[mine], outputs[name], WEIGHT[mine])
        for name, loss in losses.items()
    }
    sum(values.values()).backward()
    logs = {}
    for name, value in values.items():
        total = value.detach().clone()
        dist.all_reduce(total)
        logs[f"{name}_loss"] = float(total) / size
    gradients = {name: kernel.grad.numpy() for name, kernel in kernels(model).items()}
    return logs, gradients


def torch_empty_share(losses):
    """One process has all samples, the other none; neither hangs."""
    import torch
    import torch.distributed as dist

    logits = X @ KERNEL
    mine = slice(None) if dist.get_rank() == 0 else slice(0)
    for loss in losses.values():
        z = torch.tensor(logits[mine], requires_grad=True)
        value = loss(Y[mine], z, WEIGHT[mine])
        value.backward()
        if dist.get_rank() == 1:
            assert float(value.detach()) == 0.0
        else:
            assert np.isfinite(float(value.detach()))
            assert torch.isfinite(z.grad).all()


if __name__ == "__main__":
    compile_fast()
    globals()[sys.argv[1]]()
