"""Stochastic gradient descent with PyTorch's arithmetic, as in the paper's code."""

from typing import Any

import keras
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_selcal_recipes")
class L2SGD(keras.optimizers.Optimizer):
    """SGD with momentum and weight decay as an ℓ2 term of the gradient.

    Formula:

    ```
    g ← ∇L(w) + λ·w
    v ← μ·v + g
    w ← w − η·v
    ```

    This is `torch.optim.SGD(lr=η, momentum=μ, weight_decay=λ)`. `keras.optimizers.SGD`
    differs in two ways. Its `weight_decay` shrinks the weights by η·λ outside of the
    momentum, which makes the effective decay 1/(1 − μ) times weaker. Its velocity
    holds η·g, so that old gradients keep the old η after η is lowered. As in PyTorch,
    every trainable variable decays, including biases and the scales of batch
    normalisation.

    Args:
        learning_rate: η, a float or a schedule.
        momentum: μ in [0, 1).
        l2: λ of at least 0.
        name: name of the optimizer.
        **kwargs: further arguments of `keras.optimizers.Optimizer`.

    Example:
    >>> import keras
    >>> w = keras.Variable([1.0])
    >>> L2SGD(learning_rate=0.1, l2=0.5).apply([keras.ops.ones(1)], [w])
    >>> print(round(float(keras.ops.convert_to_numpy(w)[0]), 4))
    0.85
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        l2: float = 5e-4,
        name: str = "l2_sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum
        self.l2 = l2

    def build(self, variables: list[Any]) -> None:
        """Creates a velocity for each variable."""
        if self.built:
            return
        super().build(variables)
        self.velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        gradient = ops.cast(gradient, variable.dtype)
        velocity = self.velocities[self._get_variable_index(variable)]
        self.assign(velocity, self.momentum * velocity + gradient + self.l2 * variable)
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * velocity)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return {**config, "momentum": self.momentum, "l2": self.l2}


class DistributedL2SGD(L2SGD):
    """`L2SGD` that averages gradients over the processes of `torch.distributed`."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates variables by the mean gradients, which are one message."""
        import torch

        flat = torch.cat([gradient.reshape(-1) for gradient in grads])
        torch.distributed.all_reduce(flat)
        flat /= torch.distributed.get_world_size()
        parts = flat.split([gradient.numel() for gradient in grads])
        pairs = zip(parts, grads, strict=True)
        means = [part.reshape(gradient.shape) for part, gradient in pairs]
        return super().apply(means, trainable_variables)
