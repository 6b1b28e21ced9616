"""Stochastic gradient descent as the paper's code, written for PyTorch, does it."""

from typing import Any

import keras
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_selcal_recipes")
class L2SGD(keras.optimizers.Optimizer):
    """SGD with momentum, its weight decay an ℓ2 term of the gradient.

    Formula:

    ```
    g ← ∇L(w) + λ·w
    v ← μ·v + g
    w ← w − η·v
    ```

    This is `torch.optim.SGD(lr=η, momentum=μ, weight_decay=λ)`. Two things set it apart
    from `keras.optimizers.SGD`, whose `weight_decay` shrinks the weights by η·λ beside
    the momentum (so that the effective decay is 1/(1 − μ) times weaker), and whose
    velocity holds η·g (so that after a drop of η, old gradients still count with the
    old η). As in PyTorch, every trainable variable decays: biases and the scales of
    batch normalisation too.

    Args:
        learning_rate: η, a float or a schedule.
        momentum: μ in [0, 1).
        l2: λ of at least 0.
        name: of the optimizer.
        **kwargs: further arguments of `keras.optimizers.Optimizer`.

    Example:
    >>> import keras
    >>> w = keras.Variable([1.0])
    >>> L2SGD(learning_rate=0.1, l2=0.5).apply([keras.ops.ones(1)], [w])
    >>> round(float(w[0]), 4)
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
        """Makes a velocity for each variable."""
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
