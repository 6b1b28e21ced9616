"""One run on several devices: each batch is split, and ends as on one device.

| backend    | name        | engine                                                    |
|------------|-------------|-----------------------------------------------------------|
| JAX        | `data`      | `keras.distribution.DataParallel`, in one process or many |
| TensorFlow | `mirrored`  | `tf.distribute.MirroredStrategy`, in one process          |
| PyTorch    | `processes` | `torch.distributed`, a process for each device            |

The batch size stays that of the settings. Gradients and the statistics of batch
normalisation are those of the whole batch, whatever its size. So are the ranks of the
AU loss; those of AURC, and the kernels of KDE-XE, are on JAX alone. Where a batch does
not divide evenly, JAX gives it whole to every device, the others unequal shares, whose
means have the weight of their rows.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from recipes.runs import MODEL, Checkpoint, Predictions, Run, RunError

if TYPE_CHECKING:
    from recipes.data import Batches

NAMES = {"jax": "data", "tensorflow": "mirrored", "torch": "processes"}
_HOST_DEVICES = "--xla_force_host_platform_device_count"

T = TypeVar("T")


class Distribution:
    """One device, which all others refine."""

    name: str | None = None
    devices = 1
    #: Whether this is the process that writes and prints.
    first = True

    def config(self) -> dict[str, Any]:
        """Returns what a run's configuration tells: nothing of one device."""
        if self.name is None:
            return {}
        return {"distribution": self.name, "devices": self.devices}

    def loss_arguments(self, loss: str) -> dict[str, Any]:
        """Returns what a loss is told beside its settings."""
        return {"synchronized": True} if loss == "au" and self.name else {}

    def run(self, run: Run) -> Run:
        """Returns the run's folder as this process may use it."""
        return run

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Holds while models are built and used."""
        yield

    @contextlib.contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        """Holds while a model is fitted: outside it, it is a model like any other."""
        yield

    def training(self, batches: "Batches") -> Any:
        """Returns what `fit` is given."""
        return batches

    def validation(self, batches: "Batches") -> Any:
        """Returns what `fit` validates on."""
        return batches

    def prediction(self, batches: "Batches") -> Any:
        """Returns what `predict` is given."""
        return batches

    def means(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Returns the means of an epoch over all devices."""
        return dict(logs)


ONE = Distribution()


# --- Choice -------------------------------------------------------------------------


def prepare(devices: int | None) -> None:
    """Lets JAX see a processor as several devices; to be called before it is imported.

    Where there are accelerators it changes nothing.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    processes = int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1"))
    if (devices or 1) > processes and _HOST_DEVICES not in flags:
        local = (devices or 1) // processes
        os.environ["XLA_FLAGS"] = f"{flags} {_HOST_DEVICES}={local}".strip()


def start(
    devices: int | None = None,
    name: str = "auto",
    batch_size: int | None = None,
    arguments: Sequence[str] = (),
) -> Distribution:
    """Returns the distribution that is asked for, and joins the processes it has.

    Args:
        devices: how many share each batch. Defaults to one, or in processes that were
            started together, to all of theirs.
        name: `"auto"`, or the name that the backend's distribution has.
        batch_size: of training.
        arguments: of `python -m recipes`, for the processes that PyTorch needs.
    """
    import keras

    backend = keras.backend.backend()
    known = NAMES.get(backend, "auto")
    if name not in ("auto", known):
        raise RunError(
            f"`distribution` must be auto or {known} on {backend}. "
            f"Received: distribution={name}"
        )
    joined = {"jax": _join_jax, "torch": _join_torch}.get(backend, _alone)(name)
    if devices is None:
        devices = joined or 1
    elif joined and devices != joined:
        raise RunError(
            f"`devices` must be {joined}, which the processes have together. "
            f"Received: devices={devices}"
        )
    if devices == 1:
        return ONE
    if batch_size is not None and batch_size < devices:
        raise RunError(
            f"`devices` must be at most the batch size, {batch_size}. "
            f"Received: devices={devices}"
        )
    if backend == "jax":
        return DataParallel(devices)
    if backend == "tensorflow":
        return Mirrored(devices)
    if not joined:
        _launch(devices, arguments)
    return Processes()


def _alone(name: str) -> int:
    return 0


def _too_many(devices: int, there: int, advice: str = "") -> RunError:
    return RunError(
        f"`devices` must be at most {there}, the number of those there are{advice}. "
        f"Received: devices={devices}"
    )


# --- JAX ----------------------------------------------------------------------------


def _join_jax(name: str) -> int:
    """Joins the processes that the environment tells of; returns their devices."""
    slurm = name == "data" and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" not in os.environ and not slurm:
        return 0
    import jax
    import keras

    if not jax.distributed.is_initialized():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # Reads KERAS_DISTRIBUTION_*; without these, JAX reads what SLURM tells.
        keras.distribution.initialize()
    return jax.device_count()


class _Whole(np.ndarray):
    """Rows that every device gets all of."""


class DataParallel(Distribution):
    """JAX compiles one program over the global batch.

    Args:
        devices: how many.
    """

    name = NAMES["jax"]

    def __init__(self, devices: int) -> None:
        import jax
        import keras

        there = keras.distribution.list_devices()
        if devices > len(there):
            advice = ""
            if there[0].startswith("cpu"):
                advice = f" ({_HOST_DEVICES} in XLA_FLAGS makes more)"
            raise _too_many(devices, len(there), advice)
        self.devices = devices
        self.rank, self.size = jax.process_index(), jax.process_count()
        self.first = self.rank == 0
        self.parallel = keras.distribution.DataParallel(
            devices=there[:devices], auto_shard_dataset=False
        )

    def run(self, run: Run) -> Run:
        return run if self.size == 1 else _SharedRun(run, self.first, _jax_broadcast)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        import jax
        from keras.src.backend.jax import distribution_lib

        mesh = self.parallel.device_mesh.backend_mesh
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        place = distribution_lib.distribute_data_input

        def placed(rows: Any, layout: Any, *options: Any, **named: Any) -> Any:
            layout = everywhere if isinstance(rows, _Whole) else layout
            return place(np.asarray(rows), layout, *options, **named)

        # Keras lays out every batch as the first one, and fails at a shorter one.
        distribution_lib.distribute_data_input = placed
        try:
            with self.parallel.scope():
                yield
        finally:
            distribution_lib.distribute_data_input = place

    def training(self, batches: "Batches") -> Any:
        return _follower(batches, self._share)

    def validation(self, batches: "Batches") -> Any:
        return _follower(batches, self._share)

    def prediction(self, batches: "Batches") -> Any:
        # A process can read no more than what its own devices have.
        return _follower(batches, self._share if self.size == 1 else _whole)

    def _share(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) % self.devices:
            return _whole(rows)
        return _part(rows, self.rank, self.size)


def _whole(rows: np.ndarray) -> np.ndarray:
    return rows.view(_Whole)


def _jax_broadcast(value: T) -> T:
    from jax.experimental.multihost_utils import broadcast_one_to_all

    content = np.frombuffer(pickle.dumps(value), "uint8")
    size = int(broadcast_one_to_all(np.int32(len(content))))
    # Only the first process's content counts; the others' has to have its size.
    received = broadcast_one_to_all(np.resize(content, size))
    return pickle.loads(np.asarray(received).tobytes())


# --- TensorFlow ---------------------------------------------------------------------


class Mirrored(Distribution):
    """A replica on each device of this machine; processors are made to be several.

    Args:
        devices: how many.
    """

    name = NAMES["tensorflow"]

    def __init__(self, devices: int) -> None:
        import tensorflow as tf

        self.devices = devices
        if tf.config.list_physical_devices("GPU"):
            there = tf.config.list_logical_devices("GPU")
        else:
            there = self._processors()
        if devices > len(there):
            raise _too_many(devices, len(there))
        self.strategy = tf.distribute.MirroredStrategy(
            [device.name for device in there[:devices]]
        )

    def _processors(self) -> Any:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        virtual = [tf.config.LogicalDeviceConfiguration()] * self.devices
        # TensorFlow refuses where it has begun to compute: what there is must do.
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(cpu, virtual)
        return tf.config.list_logical_devices("CPU")

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self.strategy.scope():
            yield

    @contextlib.contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        normalizations = _normalizations(model)
        for layer in normalizations:
            layer.synchronized = True
        try:
            with _weighted_loss(model, self.devices):
                yield
        finally:
            # No other backend loads a layer that has it.
            for layer in normalizations:
                layer.synchronized = False


# --- PyTorch ------------------------------------------------------------------------


def _join_torch(name: str) -> int:
    """Joins the processes that `torchrun` has started; returns how many."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return 0
    import torch.distributed

    if not torch.distributed.is_initialized():
        gpus = torch.cuda.device_count()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if gpus and local >= gpus:
            raise _too_many(local + 1, gpus)
        if gpus:
            torch.cuda.set_device(local)
        torch.distributed.init_process_group("nccl" if gpus else "gloo")
    return size


def _launch(devices: int, arguments: Sequence[str]) -> None:
    """Runs the command once more, in a process for each device, and ends this one."""
    import torch

    gpus = torch.cuda.device_count()
    if gpus and devices > gpus:
        raise _too_many(devices, gpus)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [f"--nproc-per-node={devices}", "-m", "recipes", *arguments]
    raise SystemExit(subprocess.call([*launcher, *command]))


class Processes(Distribution):
    """The processes of `torch.distributed`, each with its share of every batch.

    Keras's `fit` runs in each of them as it does alone; gradients meet before the
    optimizer's step, in one message.
    """

    name = NAMES["torch"]

    def __init__(self) -> None:
        import torch.distributed

        self.rank = torch.distributed.get_rank()
        self.devices = torch.distributed.get_world_size()
        self.first = self.rank == 0
        self._rows = {"": 1, "val_": 1}
        self._whole = False

    def run(self, run: Run) -> Run:
        return _SharedRun(run, self.first, _torch_broadcast)

    @contextlib.contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        optimizer, normalizations = model.optimizer, _normalizations(model)
        optimizer.apply = self._meeting(optimizer.apply)
        for layer in normalizations:
            layer._moments = _moments(layer)
        try:
            with _weighted_loss(model, self.devices, lambda: self._whole):
                yield
        finally:
            del optimizer.apply
            for layer in normalizations:
                del layer._moments

    def _meeting(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def apply_means(gradients: Any, variables: Any = None) -> Any:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            torch.distributed.all_reduce(flat)
            flat /= self.devices
            parts = flat.split([gradient.numel() for gradient in gradients])
            pairs = zip(parts, gradients, strict=True)
            means = [part.reshape(gradient.shape) for part, gradient in pairs]
            return apply(means, variables)

        return apply_means

    def training(self, batches: "Batches") -> Any:
        def share(rows: np.ndarray) -> np.ndarray:
            self._whole = len(rows) < self.devices
            return rows if self._whole else _part(rows, self.rank, self.devices)

        full, rest = divmod(len(batches.split), batches.batch_size)
        sizes = [batches.batch_size] * full + [rest]
        self._rows[""] = sum(len(share(np.empty(size))) for size in sizes)
        return _follower(batches, share)

    def validation(self, batches: "Batches") -> Any:
        # Whole batches are dealt out. Who gets none takes another's, and counts for 0.
        size, samples = batches.batch_size, len(batches.split)
        mine = range(self.rank, len(batches), self.devices)
        self._rows["val_"] = sum(min(size, samples - i * size) for i in mine)
        return _follower(batches, lambda rows: rows, mine or range(1))

    def means(self, logs: Mapping[str, float]) -> dict[str, float]:
        import torch

        names = list(logs)
        rows = [self._rows["val_" if n.startswith("val_") else ""] for n in names]
        sums = [rows, [logs[n] * count for n, count in zip(names, rows, strict=True)]]
        found = torch.tensor(sums, dtype=torch.float64)
        if torch.cuda.is_available():
            found = found.cuda()
        torch.distributed.all_reduce(found)
        return dict(zip(names, (found[1] / found[0]).tolist(), strict=True))


def _moments(layer: Any) -> Callable[[Any, Any], Any]:
    """Returns what gives a layer the mean and variance of the whole batch.

    Keras has it on TensorFlow alone.
    """
    import torch

    class Total(torch.autograd.Function):
        """The sum over processes, for the gradient too."""

        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return _total(x)

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return _total(gradient)

    def moments(inputs: Any, mask: Any) -> Any:
        if mask is not None:
            raise RunError("batch normalisation of masked inputs is not distributed.")
        axes = [i for i in range(inputs.ndim) if i != layer.axis % inputs.ndim]
        count = inputs.new_full((inputs.shape[layer.axis],), inputs[..., 0].numel())
        sums = [inputs.sum(axes), inputs.square().sum(axes), count]
        total, squares, count = Total.apply(torch.stack(sums))
        mean = total / count
        return mean, squares / count - mean.square()

    return moments


def _total(x: Any) -> Any:
    import torch.distributed

    x = x.detach().clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(x)
    return x


def _torch_broadcast(value: T) -> T:
    import torch.distributed

    values = [value]
    torch.distributed.broadcast_object_list(values)
    return values[0]


# --- What they share ----------------------------------------------------------------


def _part(rows: np.ndarray, index: int, count: int) -> np.ndarray:
    n = len(rows)
    return rows[n * index // count : n * (index + 1) // count]


def _follower(
    batches: "Batches",
    change: Callable[[np.ndarray], np.ndarray],
    chosen: Sequence[int] | None = None,
) -> Any:
    """Returns batches, or those that are chosen, with other rows in each."""
    import keras

    indices = range(len(batches)) if chosen is None else chosen

    class Changed(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(indices)

        def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
            return tuple(change(rows) for rows in batches[indices[index]])

        def on_epoch_begin(self) -> None:
            batches.on_epoch_begin()

    return Changed(workers=1)


@contextlib.contextmanager
def _weighted_loss(
    model: Any, count: int, whole: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Gives the gradient of a replica's mean the weight of its rows, which need not be
    as many as another's: the mean over the replicas is then that over all rows.

    Args:
        model: a compiled model.
        count: number of replicas.
        whole: tells, where replicas validate on batches of their own, whether all have
            the same batch in training. Such batches are ranked alone.
    """
    from keras import ops

    from keras_selcal._core.replicas import replicas

    compute, loss = model.compute_loss, model.loss

    def compute_loss(
        x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        if whole is not None and hasattr(loss, "synchronized"):
            loss.synchronized = training and not whole()
        value = compute(x, y, y_pred, sample_weight, training=training)
        rows = ops.cast(ops.shape(y_pred)[0], value.dtype)
        if training:
            weighted = value * (count * rows / replicas(True).total(rows))
            # Keras weights the value itself, in the mean of the epoch.
            value = weighted + ops.stop_gradient(value - weighted)
        # A replica without rows has no mean.
        return ops.where(rows > 0, value, 0.0)

    model.compute_loss = compute_loss
    try:
        yield
    finally:
        del model.compute_loss
        if hasattr(loss, "synchronized"):
            loss.synchronized = True


def _normalizations(model: Any) -> list[Any]:
    import keras

    kind = keras.layers.BatchNormalization
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


class _SharedRun(Run):
    """A run that the first process holds, and all of them know.

    Args:
        run: the folder.
        first: whether this is the first process.
        broadcast: gives all processes the first one's value.
    """

    def __init__(self, run: Run, first: bool, broadcast: Callable[[Any], Any]) -> None:
        super().__init__(run.folder)
        self._run, self._first, self._broadcast = run, first, broadcast

    def _all(self, action: Callable[[], T]) -> T:
        """Returns what the first process finds; its error is everybody's."""
        found: Any = (None, None)
        if self._first:
            try:
                found = (action(), None)
            except RunError as error:
                found = (None, str(error))
        value, message = self._broadcast(found)
        if message is not None:
            raise RunError(message)
        return value

    @property
    def finished(self) -> bool:
        return self._all(lambda: self._run.finished)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            self._all(lambda: stack.enter_context(self._run.lock()))
            yield

    def claim(self, config: Mapping[str, Any]) -> None:
        self._all(lambda: self._run.claim(config))

    def config(self) -> dict[str, Any]:
        return self._all(self._run.config)

    def load_checkpoint(self) -> Checkpoint | None:
        return self._all(self._run.load_checkpoint)

    def predictions(self, split: str) -> Predictions:
        return self._all(lambda: self._run.predictions(split))

    def save_checkpoint(self, state: Checkpoint) -> None:
        self._all(lambda: self._run.save_checkpoint(state))

    def write_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        self._all(lambda: self._run.write_history(rows))

    def write_predictions(self, split: str, predictions: Predictions) -> None:
        self._all(lambda: self._run.write_predictions(split, predictions))

    def save_model(self, model: Any) -> None:
        if not self._first:
            # Keras makes variables where it saves, for which JAX needs all processes.
            with tempfile.TemporaryDirectory() as folder:
                model.save(os.path.join(folder, MODEL))
        self._all(lambda: self._run.save_model(model))

    def finish(self, environment: Mapping[str, Any]) -> None:
        self._all(lambda: self._run.finish(environment))
