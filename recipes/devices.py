"""One run on several devices, which share every batch.

JAX uses `keras.distribution.DataParallel`, in one process or several; TensorFlow
`tf.distribute.MirroredStrategy`, in one process; PyTorch `torch.distributed`, with a
process for each device. The batch size stays that of the settings, and all shares of a
batch have the same size: the number of devices must divide the batch size, and rows of
a last batch that it does not divide are left out. Gradients, and the ranks of the AU
loss, are those of the whole batch. Batch normalization uses the whole batch on JAX and
TensorFlow, and each process's share on PyTorch; AURC and KDE-XE use the whole batch on
JAX, and each device's share elsewhere. The trained model is evaluated on one device.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from recipes.request import RunError

if TYPE_CHECKING:
    from recipes.data.pipeline import Batches

_HOST_DEVICES = "--xla_force_host_platform_device_count"


class Devices:
    """One device; the base class of several.

    Attributes:
        count: the number of devices.
        processes: the number of processes, each with its share of every batch.
        rank: the number of this process. Process 0 alone writes and prints.
    """

    count, processes, rank = 1, 1, 0

    def scope(self) -> AbstractContextManager[Any]:
        """Returns the context in which a model is built and fitted."""
        return contextlib.nullcontext()

    def synchronize(self, model: Any) -> None:
        """Lets batch normalization use the whole batch, where Keras offers it."""

    def agree(self, model: Any) -> None:
        """Gives all processes the moving statistics of the first one."""

    def means(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Returns the means of an epoch over all processes."""
        return dict(logs)

    def shares(self, batches: "Batches") -> Any:
        """Returns this process's share of each batch."""
        if self.count == 1:
            return batches
        import keras

        count, rank, processes = self.count, self.rank, self.processes
        full, rest = divmod(len(batches.split), batches.batch_size)

        def share(rows: np.ndarray) -> np.ndarray:
            size = len(rows) // count * count // processes
            return rows[rank * size : (rank + 1) * size]

        class Shares(keras.utils.PyDataset):
            def __len__(self) -> int:
                return full + (rest >= count)

            def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
                return tuple(share(rows) for rows in batches[index])

            def on_epoch_begin(self) -> None:
                batches.on_epoch_begin()

        return Shares(workers=1)


ONE = Devices()


def prepare(devices: int | None) -> None:
    """Lets JAX see a processor as several devices; call it before importing JAX.

    It changes nothing on machines with accelerators.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    processes = int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1"))
    if (devices or 1) > processes and _HOST_DEVICES not in flags:
        local = (devices or 1) // processes
        os.environ["XLA_FLAGS"] = f"{flags} {_HOST_DEVICES}={local}".strip()


def start(
    devices: int | None, batch_size: int, arguments: Sequence[str] = ()
) -> Devices:
    """Returns the requested devices, and joins their processes.

    Args:
        devices: how many share each batch; None for one, or for those of all processes
            that were started together.
        batch_size: of training.
        arguments: of `python -m recipes`, for the processes that PyTorch needs.
    """
    import keras

    backend = keras.backend.backend()
    joins = {"jax": _join_jax, "torch": _join_torch}
    joined = joins[backend](devices) if backend in joins else 0
    count = devices or joined or 1
    if joined > 1 and count != joined:
        raise _refused(count, f"be {joined}, which the processes have together")
    if batch_size % count:
        raise _refused(count, f"divide the batch size, {batch_size}")
    if count == 1:
        return ONE
    if backend == "torch" and not joined:
        _launch(count, arguments)
    kinds: dict[str, Any] = {"jax": DataParallel, "tensorflow": Mirrored}
    return kinds.get(backend, Processes)(count)


def _refused(devices: int, must: str) -> RunError:
    return RunError(f"`devices` must {must}. Received: devices={devices}")


def _check_count(devices: int, there: int) -> None:
    if devices > there:
        raise _refused(devices, f"be at most {there}, the number of devices there are")


# --- JAX ----------------------------------------------------------------------------


def _join_jax(devices: int | None) -> int:
    """Joins the processes that the environment describes; returns their devices.

    The tasks of a SLURM step may also be runs of their own: they are joined if several
    devices are asked for.
    """
    slurm = int(os.environ.get("SLURM_NTASKS", "1")) > 1 and (devices or 1) > 1
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" not in os.environ and not slurm:
        return 0
    import jax
    import keras

    if not jax.distributed.is_initialized():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # Reads KERAS_DISTRIBUTION_*; without them, JAX reads SLURM's variables.
        keras.distribution.initialize()
    return jax.device_count()


class DataParallel(Devices):
    """JAX compiles one program over the global batch."""

    def __init__(self, count: int) -> None:
        import jax
        import keras

        there = keras.distribution.list_devices()
        _check_count(count, len(there))
        self.count = count
        self.rank, self.processes = jax.process_index(), jax.process_count()
        self._parallel = keras.distribution.DataParallel(
            devices=there[:count], auto_shard_dataset=False
        )

    def scope(self) -> AbstractContextManager[Any]:
        return self._parallel.scope()


# --- TensorFlow ---------------------------------------------------------------------


class Mirrored(Devices):
    """A replica on each GPU, or on each of several virtual devices of a processor."""

    def __init__(self, count: int) -> None:
        import tensorflow as tf

        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        if kind == "CPU":
            cpu = tf.config.list_physical_devices("CPU")[0]
            virtual = [tf.config.LogicalDeviceConfiguration()] * count
            # TensorFlow refuses after it has begun to compute.
            with contextlib.suppress(RuntimeError):
                tf.config.set_logical_device_configuration(cpu, virtual)
        there = tf.config.list_logical_devices(kind)
        _check_count(count, len(there))
        self.count = count
        self._strategy = tf.distribute.MirroredStrategy(
            [device.name for device in there[:count]]
        )

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def synchronize(self, model: Any) -> None:
        for layer in model.layers:
            if hasattr(layer, "synchronized"):
                layer.synchronized = True
            if hasattr(layer, "layers"):
                self.synchronize(layer)


# --- PyTorch ------------------------------------------------------------------------


def _join_torch(devices: int | None) -> int:
    """Joins the processes that `torchrun` has started; returns how many."""
    if "RANK" not in os.environ:
        return 0
    import torch.distributed

    if not torch.distributed.is_initialized():
        gpus = torch.cuda.device_count()
        if gpus:
            local = int(os.environ.get("LOCAL_RANK", "0"))
            _check_count(local + 1, gpus)
            torch.cuda.set_device(local)
        torch.distributed.init_process_group("nccl" if gpus else "gloo")
    return torch.distributed.get_world_size()


def _launch(devices: int, arguments: Sequence[str]) -> None:
    """Runs the command again, in a process for each device, and ends this one."""
    import torch

    if gpus := torch.cuda.device_count():
        _check_count(devices, gpus)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [f"--nproc-per-node={devices}", "-m", "recipes", *arguments]
    raise SystemExit(subprocess.call([*launcher, *command]))


class Processes(Devices):
    """The processes of `torch.distributed`; `DistributedSGD` averages gradients."""

    def __init__(self, count: int) -> None:
        import torch.distributed

        self.count = self.processes = count
        self.rank = torch.distributed.get_rank()

    def agree(self, model: Any) -> None:
        import torch.distributed

        for variable in model.non_trainable_variables:
            if "float" in variable.dtype:
                torch.distributed.broadcast(variable.value.detach(), 0)

    def means(self, logs: Mapping[str, float]) -> dict[str, float]:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        sums = torch.tensor([*logs.values()], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(sums)
        return dict(zip(logs, (sums / self.count).tolist(), strict=True))
