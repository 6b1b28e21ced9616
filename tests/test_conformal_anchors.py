"""Prediction sets of another library on the same scores."""

import numpy as np
import pytest
from real_data import load_logits

from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("method", ["lac", "aps", "raps", "saps"])
def test_sets_equal_those_of_crepes_on_real_logits(method, alpha):
    base = pytest.importorskip("crepes.base")
    data = load_logits("markus93_resnet110_c10_logits.npz")
    options = {"method": method, "from_logits": True}
    # Fewer than all: crepes computes p-values one by one.
    z, y = data["val_logits"][:1000], data["val_labels"].reshape(-1)[:1000]
    new = data["test_logits"][:500]
    scores = conformal_scores(z, y, **options)
    theirs = (
        base.ConformalClassifier()
        .fit(scores)
        .predict_set(
            conformal_scores(new, None, **options),
            confidence=1 - alpha,
            smoothing=False,
        )
    )
    ours = conformal_sets(new, conformal_threshold(scores, alpha), **options)
    np.testing.assert_array_equal(ours, np.asarray(theirs, bool))
