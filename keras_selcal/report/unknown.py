"""Unknown inputs in a report: how confidence tells them from known ones."""

from typing import Any

import numpy as np

from keras_selcal import functional
from keras_selcal._arrays import Array
from keras_selcal._predictions.samples import Samples
from keras_selcal.functional.unknown import check_share, kinds_of, unknown_weight
from keras_selcal.metric_table import MetricRow

# Share of the known inputs that is accepted where the unknown ones are counted.
TPR = 0.95

# Counts that are held at a time.
_MOST_COUNTS = 2**21

ROWS = {
    row.name: row
    for row in (
        MetricRow(
            "ood_auroc",
            functional.ood_auroc,
            "Unknown inputs: AUROC",
            "unknown AUROC",
            "Probability that a known input is more confident than an unknown one: 0.5 "
            "is chance, 1 is perfect.",
            "",
            "up",
        ),
        MetricRow(
            "ood_aupr",
            functional.ood_aupr,
            "Unknown inputs: average precision",
            "unknown AUPR",
            "Share of known inputs among the more confident ones, averaged over the "
            "known.",
            "",
            "up",
        ),
        MetricRow(
            "fpr_at_tpr_0.95",
            functional.fpr_at_tpr,
            "Unknown inputs accepted",
            "unknown accepted",
            "Share of the unknown inputs that is accepted where 95\N{NO-BREAK SPACE}% "
            "of the known ones are.",
            "share",
        ),
        MetricRow(
            "scod_aurc",
            functional.scod_aurc,
            "AURC with unknown inputs",
            "SCOD AURC",
            "AURC of known and unknown inputs together, where accepting an unknown one "
            "is an error.",
            "",
        ),
    )
}


class UnknownInputs:
    """The metrics of samples together with unknown inputs.

    Args:
        samples: the known inputs.
        csf: the confidence score that ranks.
        unknown: predictions of inputs that belong to none of the classes, (m, k).
        share: the share of unknown inputs in use, or None for the share in the data.
    """

    def __init__(self, samples: Samples, csf: Any, unknown: Any, share: Any) -> None:
        self.share = check_share(share)
        self._kinds = kinds_of(samples, csf, unknown)
        self._samples = samples
        self.m = self._kinds.m

    def estimates(self) -> dict[str, float]:
        """Returns the metrics by name."""
        found = self.metrics(np.ones((1, self._samples.n)), np.ones((1, self.m)))
        return {name: float(values[0]) for name, values in found.items()}

    def metrics(self, drawn: Array, unknown: Array) -> dict[str, Array]:
        """Returns each metric of each resample, (rows,).

        Args:
            drawn: how often each sample is drawn, (rows, n).
            unknown: how often each unknown input is drawn, (rows, m).
        """
        step = max(1, _MOST_COUNTS // (self._samples.n + self.m))
        parts = [
            self._block(drawn[i : i + step], unknown[i : i + step])
            for i in range(0, len(drawn), step)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in ROWS}

    def _block(self, drawn: Array, unknown: Array) -> dict[str, Array]:
        count = self._samples.counts_of(drawn)
        apart = self._kinds.ranking(count, unknown, apart=True)
        total = count.sum(axis=-1, keepdims=True)
        each = unknown_weight(self.share, total, self.m)
        values = (
            apart.failure_auroc(),
            apart.average_precision("known"),
            apart.fpr_at(TPR),
            self._kinds.ranking(count, each * unknown).aurc(),
        )
        return dict(zip(ROWS, values, strict=True))

    def curve(self) -> tuple[Array, Array]:
        """Returns the shares of known and of unknown inputs that are accepted, from
        the most confident group on.
        """
        ranking = self._kinds.ranking(self._samples.counts, np.ones(self.m), apart=True)
        mass, strange = ranking.accepted()
        known = mass - strange
        return known / known[-1], strange / strange[-1]
