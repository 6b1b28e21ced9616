"""Statistics over the replicas of a data-parallel step.

All communication between replicas is in this module. JAX needs none, because
`keras.distribution` compiles one program for the global batch.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
from keras import ops

from keras_selcal._backend.ops import Tensor
from keras_selcal._formulas.soft_cdf import ALONE, Replicas


class _Mirrored(Replicas):
    """The replicas of a `tf.distribute` strategy."""

    def __init__(self, context: Any, reduce_sum: Any) -> None:
        self.context, self.reduce_sum = context, reduce_sum

    def total(self, x: Tensor) -> Tensor:
        return self.differentiable_total(ops.stop_gradient(x))

    def differentiable_total(self, x: Tensor) -> Tensor:
        return self.context.all_reduce(self.reduce_sum, x)

    def largest(self, x: Tensor) -> Tensor:
        # tf.distribute reduces only by sum and mean.
        x = ops.expand_dims(ops.stop_gradient(x), 0)
        return ops.amax(self.context.all_gather(x, axis=0), axis=0)


class _Processes(Replicas):
    """The processes of `torch.distributed`."""

    def __init__(self, distributed: Any) -> None:
        self.distributed = distributed

    def total(self, x: Tensor) -> Tensor:
        return self._reduced(x, self.distributed.ReduceOp.SUM)

    def differentiable_total(self, x: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(x)

    def largest(self, x: Tensor) -> Tensor:
        return self._reduced(x, self.distributed.ReduceOp.MAX)

    def _reduced(self, x: Tensor, operation: Any) -> Tensor:
        x = x.detach().clone()
        self.distributed.all_reduce(x, operation)
        return x


def replicas() -> Replicas:
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


def everywhere(model: keras.Model) -> AbstractContextManager[Any]:
    """Returns the scope that creates a variable on each replica of a model."""
    strategy = getattr(model, "distribute_strategy", None)
    return nullcontext() if strategy is None else strategy.scope()
