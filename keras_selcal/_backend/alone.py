"""One replica alone: what `replicas.py` does for several; needs no Keras."""

from typing import Any


class Alone:
    """The only replica of a step; `replicas.py` has several."""

    def gather(self, x: Any) -> Any:
        """Returns x (rows, n) of all replicas side by side, without a gradient."""
        return x

    def total(self, x: Any) -> Any:
        """Returns x, summed over the replicas; its gradient is summed likewise."""
        return x


ALONE = Alone()
