"""The answers of a selective classifier."""

from typing import NamedTuple

import numpy as np


class SelectivePrediction(NamedTuple):
    """Answers of a selective classifier.

    Attributes:
        labels: predicted classes; −1 (`ABSTAINED`) where the sample is not accepted.
        accepted: which samples are answered.
        confidence: confidence scores, of rejected samples too.
    """

    labels: np.ndarray
    accepted: np.ndarray
    confidence: np.ndarray
