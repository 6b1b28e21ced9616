"""Past batches that small ones are ranked with."""

import keras

from keras_selcal._memory import ScoreMemory, check_momentum
from keras_selcal._models import unwrap_train_step, wrap_train_step
from keras_selcal._validation import refuse
from keras_selcal.callbacks._loss_state import LossState, State
from keras_selcal.losses import AULoss


class CDFMemory(LossState):
    """Ranks scores by those of past batches too, for `AULoss` with small batches.

    Formula:

    ```
    H ← m H + h
    ```

    with h the counts of a batch's confidence scores, in cells of which the M bins of
    the soft CDF are made. Ĝ_ν, its cap n/(n + 1) and τ are taken from H, the batch at
    hand included; τ is exact to 1/8192 of the support. The first batch is ranked as
    without a memory; with m = 0.9 and batches of 16, n goes to 160. What is
    remembered comes from networks up to a few times 1/(1 − m) steps old. H carries no
    gradient, and samples of weight 0 and masked ones do not enter it.

    Only steps of training are remembered: `evaluate` and validation rank each batch
    by H as it is and the batch itself. After training the loss keeps H. It is saved
    with the model (by a `ModelCheckpoint` too), and a later `fit` with this callback
    goes on from it; one without the callback ranks by it and leaves it as it is.
    Replicas of `tf.distribute` and `torch.distributed` remember the global batch, as
    if `synchronized=True`.

    In a training loop of one's own, `set_model(model)` comes first and
    `on_train_end()` last, and each step is done `with model.loss.memory.learning():`.

    Args:
        momentum: m in [0, 1).

    Example:
    >>> import keras
    >>> from keras_selcal import AULoss
    >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    >>> model.compile(loss=AULoss())
    >>> x, y = keras.random.normal((32, 4)), keras.ops.arange(32) % 3
    >>> memory = CDFMemory(momentum=0.5)
    >>> history = model.fit(x, y, batch_size=8, verbose=0, callbacks=[memory])
    >>> float(model.loss.memory.counts.sum())  # 8 + 8/2 + 8/4 + 8/8
    15.0
    """

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = check_momentum(momentum)

    def states(self) -> dict[str, State]:
        loss = self.loss
        if not isinstance(loss, AULoss):
            refuse("model.loss", loss, "an AULoss, given to `compile` as an object")
        if loss.memory is None:
            loss.memory = ScoreMemory(loss.num_bins, self.momentum)
        loss.memory.release()
        loss.memory.momentum = self.momentum
        state = State("cdf_memory", loss.memory.counts)
        loss.memory.variable = state.variable
        return {"cdf_memory": state}

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        # Only there is a loss computed to be learnt from: that of an `evaluate` in the
        # midst of an epoch, by another callback, is not.
        wrap_train_step(model, model.loss.memory.learning)

    def release(self) -> None:
        unwrap_train_step(self.model)
        self.loss.memory.release()
        if not self.loss.memory.counts.any():
            self.loss.memory = None
