"""Statistics over the replicas of a data-parallel step.

All communication between replicas is in this module. JAX needs none, because
`keras.distribution` compiles one program for the global batch.
"""

from typing import Any

import keras
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._backend.alone import ALONE, Alone


class _Mirrored(Alone):
    """The replicas of a `tf.distribute` strategy."""

    def __init__(self, context: Any, reduce_sum: Any) -> None:
        self.context, self.reduce_sum = context, reduce_sum

    def gather(self, x: Tensor) -> Tensor:
        return self.context.all_gather(ops.stop_gradient(x), axis=1)

    def total(self, x: Tensor) -> Tensor:
        return self.context.all_reduce(self.reduce_sum, x)


class _Processes(Alone):
    """The processes of `torch.distributed`."""

    def __init__(self, distributed: Any) -> None:
        self.distributed = distributed

    def gather(self, x: Tensor) -> Tensor:
        import torch

        x = x.detach()
        world = self.distributed.get_world_size()
        size = torch.tensor([x.shape[1]], device=x.device)
        sizes = [torch.empty_like(size) for _ in range(world)]
        self.distributed.all_gather(sizes, size)
        # Processes may hold short batches, and exchange tensors of one shape only.
        lengths = [int(each) for each in sizes]
        padded = x.new_zeros((x.shape[0], max(lengths)))
        padded[:, : x.shape[1]] = x
        parts = [torch.empty_like(padded) for _ in range(world)]
        self.distributed.all_gather(parts, padded)
        return torch.cat(
            [part[:, :n] for part, n in zip(parts, lengths, strict=True)], dim=1
        )

    def total(self, x: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(x)


def replicas() -> Alone:
    """Returns all replicas of this step."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            return _Mirrored(context, tf.distribute.ReduceOp.SUM)
    elif backend == "torch":
        import torch.distributed

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return _Processes(torch.distributed)
    return ALONE
