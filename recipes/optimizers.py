"""Stochastic gradient descent with PyTorch's arithmetic, as in the paper's code."""

from typing import Any

import keras
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_selcal_recipes")
class TorchSGD(keras.optimizers.SGD):
    """SGD with momentum and weight decay as an ℓ2 term of the gradient.

    Formula:

    ```
    g ← ∇L(w) + λ·w
    v ← μ·v + g
    w ← w − η·v                with Nesterov's momentum w − η·(g + μ·v)
    ```

    This is `torch.optim.SGD(lr=η, momentum=μ, weight_decay=λ, nesterov=…)`. The
    velocity of `keras.optimizers.SGD` holds η·g, so that old gradients keep the old η
    after η is lowered, and its `weight_decay` is decoupled from the gradient and thus
    from the momentum, which makes it 1/(1 − μ) times weaker. As in PyTorch, every
    trainable variable decays, including biases and the scales of batch normalisation.

    Args:
        learning_rate: η, a float or a schedule.
        momentum: μ in [0, 1).
        l2: λ of at least 0.
        **kwargs: further arguments of `keras.optimizers.SGD`.

    Example:
    >>> import keras
    >>> w = keras.Variable([1.0])
    >>> TorchSGD(learning_rate=0.1, l2=0.5).apply([keras.ops.ones(1)], [w])
    >>> print(round(float(keras.ops.convert_to_numpy(w)[0]), 4))
    0.85
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        l2: float = 5e-4,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum=momentum, **kwargs)
        self.l2 = l2

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        gradient = ops.cast(gradient, variable.dtype) + self.l2 * variable
        if not self.momentum:
            super().update_step(gradient, variable, learning_rate)
            return
        velocity = self.momentums[self._get_variable_index(variable)]
        self.assign(velocity, self.momentum * velocity + gradient)
        step = velocity
        if self.nesterov:
            step = gradient + self.momentum * velocity
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * step)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "l2": self.l2}
