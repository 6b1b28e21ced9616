"""One run on several devices, which share every batch: `keras.distribution` on JAX.

The batch size stays that of the settings. JAX compiles one program over the whole
batch: gradients, batch normalization and the ranks of the losses are those of one
device. Every batch must divide by the number of devices, so the rows of a last batch
that do not are left out. The trained model is evaluated on one device.
"""

import contextlib
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from recipes.tasks import RunError

if TYPE_CHECKING:
    from recipes.data.pipeline import Batches

_HOST_DEVICES = "--xla_force_host_platform_device_count"


def prepare(devices: int) -> None:
    """Lets JAX see a processor as several devices; call it before importing JAX.

    It changes nothing on machines with accelerators.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if devices > 1 and _HOST_DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_HOST_DEVICES}={devices}".strip()


def check(devices: int, batch_size: int) -> None:
    """Refuses devices that are not there or cannot share a batch."""
    import keras

    must = None
    if devices > 1 and keras.backend.backend() != "jax":
        must = f"be 1 on {keras.backend.backend()}: only JAX shares batches"
    elif batch_size % devices:
        must = f"divide the batch size, {batch_size}"
    elif devices > 1 and devices > (there := len(keras.distribution.list_devices())):
        must = f"be at most {there}, the number of devices there are"
    if must is not None:
        raise RunError(f"`devices` must {must}. Received: devices={devices}")


def scope(devices: int) -> AbstractContextManager[Any]:
    """Returns the context in which a model is built and fitted."""
    if devices == 1:
        return contextlib.nullcontext()
    import keras

    there = keras.distribution.list_devices()[:devices]
    parallel = keras.distribution.DataParallel(devices=there, auto_shard_dataset=False)
    context: AbstractContextManager[Any] = parallel.scope()
    return context


def even(batches: "Batches", devices: int) -> Any:
    """Returns the batches without the rows that devices cannot share."""
    if devices == 1:
        return batches
    import keras

    full, rest = divmod(len(batches.split), batches.batch_size)

    class Even(keras.utils.PyDataset):
        def __len__(self) -> int:
            return full + (rest >= devices)

        def __getitem__(self, index: int) -> tuple[Any, ...]:
            rows = batches[index]
            size = len(rows[0]) // devices * devices
            return tuple(part[:size] for part in rows)

        def on_epoch_begin(self) -> None:
            batches.on_epoch_begin()

    return Even(workers=1)
