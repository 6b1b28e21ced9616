"""Metrics of confidence in the presence of unknown inputs, streaming."""

import math
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_selcal._backend.host import array_module, cast
from keras_selcal._backend.ops import Tensor, unconverted
from keras_selcal._formulas.ranking import ROUNDED, Ranking
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import broadcast_weight
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_number, refuse
from keras_selcal.functional.unknown import check_share, unknown_weight
from keras_selcal.metrics.ranking import (
    RankingMetric,
    ranking_of,
    rescaled,
    to_cells,
)

UNKNOWN = -1
"""The label of an input that belongs to none of the classes."""


class UnknownMetric(RankingMetric):
    """Base class of the metrics of known and unknown inputs.

    Labels are class indices; −1 marks an unknown input. The state has a histogram of
    the confidence scores for each kind. Subclasses implement `of_kinds`.

    Weights of the known inputs that sum to less than their number are scaled up to it,
    and so are those of the unknown inputs: what the ratio of the two kinds is in use is
    for `share` to say.

    A loss leaves unknown inputs out with `ignore_class=-1`. Pass these metrics in
    `metrics=` then, not in `weighted_metrics=`: on PyTorch, a loss of Keras sets the
    sample weights of ignored samples to 0, for the metrics as well.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `ignore_class`,
            `axis` and others, see `ClassificationMetric`.
    """

    default_name: ClassVar[str]

    def __init__(
        self, csf: Any = "msp", *, name: str | None = None, **options: Any
    ) -> None:
        if options.get("multi_label"):
            refuse("multi_label", True, "False: an unknown input belongs to no class")
        if options.get("ignore_class") == UNKNOWN:
            refuse("ignore_class", UNKNOWN, "a class: −1 marks unknown inputs")
        self._updating_unknown = False
        super().__init__(csf, name=name or self.default_name, **options)

    def create_state(self, groups: int) -> None:
        super().create_state(groups)
        self._unknown = self.add_sums("unknown", (groups, self.size, 2))
        self._present_unknown = self.add_sums("present_unknown", (groups,))

    @unconverted
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds samples to the state.

        Args:
            y_true: class indices (...) or (..., 1), or −1 for unknown inputs.
            y_pred: probabilities, of which each row sums to 1, or logits.
            sample_weight: of a shape that broadcasts to the samples', not negative.
        """
        given = 1.0 if sample_weight is None else sample_weight
        # Values in NumPy arrays are checked, those in tensors are not looked at.
        tensors = ops.is_tensor(y_true) or ops.is_tensor(given)
        xp, convert = (ops, ops.convert_to_tensor) if tensors else (np, np.asarray)
        y_true, given = convert(y_true), convert(given)
        if any(name in str(y_true.dtype) for name in ("bool", "uint8")):
            # PyTorch takes the −1 below for 255.
            y_true = cast(y_true, "int32")
        shape = self.outputs.sample_shape(ops.shape(ops.convert_to_tensor(y_pred)))
        if not tensors and y_true.size != math.prod(shape):
            allowed = f"one class index a sample, {UNKNOWN} for unknown inputs"
            refuse("y_true", y_true.shape, allowed)
        unknown = xp.reshape(y_true == UNKNOWN, shape)
        # Any class that `ignore_class` keeps will do.
        some = xp.full_like(y_true, int(self.ignore_class == 0))
        labels = xp.where(y_true == UNKNOWN, some, y_true)
        weight = broadcast_weight(given, shape, xp)
        for updating_unknown in (False, True):
            self._updating_unknown = updating_unknown
            # 0·NaN is NaN: what does not count here must be 0.
            counted = xp.where(unknown == updating_unknown, weight, 0)
            super().update_state(labels, y_pred, counted)

    def update(self, batch: Batch, w: Tensor) -> None:
        if not self._updating_unknown:
            return super().update(batch, w)
        # Every answer to an unknown input is an error.
        cells = to_cells(batch.log_odds(self.csf), self.size)
        rows = batch.xp.stack([w, w], axis=-1)
        self.accumulate_rows(self._unknown, rows, cells, self._present_unknown)

    def of_kinds(self, known: Tensor, unknown: Tensor) -> Tensor:
        """Returns the metric for mass and loss of the cells, (groups, cells, 2)."""
        raise NotImplementedError

    def compute(self) -> tuple[Tensor, Tensor]:
        known = rescaled(self.total(self._histogram), self.total(self._present))
        present = self.total(self._present_unknown)
        unknown = rescaled(self.total(self._unknown), present)
        return self.of_kinds(known, unknown), self.total(self._present)


def _by_kind(known: Tensor, unknown: Tensor) -> Ranking:
    """Returns the ranking whose loss is the mass of the unknown inputs."""
    mass = known[..., 0] + unknown[..., 0]
    return Ranking(mass, unknown[..., 0], array_module(mass), ROUNDED)


@serializable
class OODAUROC(UnknownMetric):
    """Probability that a known input has higher confidence than an unknown one.

    The streaming form of `functional.ood_auroc`. The label −1 marks an unknown input.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: see `UnknownMetric`.

    Example:
    >>> import numpy as np
    >>> metric = OODAUROC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 1, -1]), p)
    >>> float(metric.result())
    1.0
    """

    default_name = "ood_auroc"
    direction = "up"

    def of_kinds(self, known: Tensor, unknown: Tensor) -> Tensor:
        return _by_kind(known, unknown).failure_auroc()


@serializable
class OODAUPR(UnknownMetric):
    """Average precision in telling known inputs from unknown ones.

    The streaming form of `functional.ood_aupr`. The label −1 marks an unknown input.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        positive: `"known"` or `"unknown"`, the kind that is to be found.
        **options: see `UnknownMetric`.

    Example:
    >>> import numpy as np
    >>> metric = OODAUPR()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 1, -1]), p)
    >>> float(metric.result())
    1.0
    """

    default_name = "ood_aupr"
    direction = "up"

    def __init__(
        self, csf: Any = "msp", *, positive: str = "known", **options: Any
    ) -> None:
        super().__init__(csf, **options)
        self.positive = check_choice("positive", positive, ("known", "unknown"))

    def of_kinds(self, known: Tensor, unknown: Tensor) -> Tensor:
        return _by_kind(known, unknown).average_precision(self.positive)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "positive": self.positive}


@serializable
class FPRAtTPR(UnknownMetric):
    """Share of unknown inputs that pass where a share of the known ones does.

    The streaming form of `functional.fpr_at_tpr`. The label −1 marks an unknown input.

    Args:
        tpr: share of the known inputs that must be accepted, in (0, 1].
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: see `UnknownMetric`.

    Example:
    >>> import numpy as np
    >>> metric = FPRAtTPR(0.95)
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 1, -1]), p)
    >>> float(metric.result())
    0.0
    """

    default_name = "fpr_at_tpr"

    def __init__(self, tpr: float = 0.95, csf: Any = "msp", **options: Any) -> None:
        super().__init__(csf, **options)
        self.tpr = check_number("tpr", tpr, "a number in (0, 1]", above=0.0, most=1.0)

    def of_kinds(self, known: Tensor, unknown: Tensor) -> Tensor:
        return _by_kind(known, unknown).fpr_at(self.tpr)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "tpr": self.tpr}


class _Mixture(UnknownMetric):
    """Base class of the areas in which accepting an unknown input is an error."""

    def __init__(
        self, csf: Any = "msp", *, share: float | None = None, **options: Any
    ) -> None:
        super().__init__(csf, **options)
        self.share = check_share(share)

    def mixture(self, known: Tensor, unknown: Tensor) -> Ranking:
        xp = array_module(known)
        n, m = (
            xp.sum(part[..., :1], axis=-2, keepdims=True) for part in (known, unknown)
        )
        weight = unknown_weight(self.share, n, xp.where(m > 0, m, 1.0))
        if self.share is not None:
            # A share of inputs of which none was seen is not defined.
            weight = xp.where((n > 0) & (m > 0), weight, float("nan"))
        return ranking_of(known + weight * unknown)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "share": self.share}


@serializable
class SCODAURC(_Mixture):
    """AURC in the presence of unknown inputs, each of which is an error if accepted.

    The streaming form of `functional.scod_aurc`. The label −1 marks an unknown input.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        share: π, the share of unknown inputs in use, see `functional.scod_aurc`; or
            None for that of the data.
        **options: see `UnknownMetric`.

    Example:
    >>> import numpy as np
    >>> metric = SCODAURC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 0, -1]), p)
    >>> round(float(metric.result()), 4)        # (0 + 1/2 + 2/3)/3
    0.3889
    """

    default_name = "scod_aurc"

    def of_kinds(self, known: Tensor, unknown: Tensor) -> Tensor:
        return self.mixture(known, unknown).aurc()


@serializable
class SCODAUGRC(_Mixture):
    """AUGRC in the presence of unknown inputs, each of which is an error if accepted.

    The streaming form of `functional.scod_augrc`. The label −1 marks an unknown input.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        share: π, the share of unknown inputs in use, see `functional.scod_aurc`; or
            None for that of the data.
        **options: see `UnknownMetric`.

    Example:
    >>> import numpy as np
    >>> metric = SCODAUGRC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 0, -1]), p)
    >>> round(float(metric.result()), 4)
    0.2222
    """

    default_name = "scod_augrc"

    def of_kinds(self, known: Tensor, unknown: Tensor) -> Tensor:
        return self.mixture(known, unknown).augrc()
