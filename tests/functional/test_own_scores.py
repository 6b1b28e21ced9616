"""Metrics of scores and losses of one's own, and the arguments of all functions."""

import inspect

import numpy as np
import pytest
from metric_data import data

from keras_selcal import calibrators, csf, plots
from keras_selcal import functional as F  # noqa: N812

pytestmark = pytest.mark.backend_free

AREAS = {
    "aurc": {},
    "excess_aurc": {},
    "augrc": {},
    "failure_auroc": {},
    "au": {"quantile": 0.6},
    "risk_at_coverage": {"coverage": 0.7},
    "coverage_at_risk": {"risk": 0.3},
}


def drawn(n=200, k=4):
    y, p = data(n, k)
    return y, p, p.max(axis=-1), (p.argmax(axis=-1) != y).astype("float64")


@pytest.mark.parametrize("name", AREAS)
@pytest.mark.parametrize("weighted", [False, True])
def test_own_scores_and_losses_equal_those_of_predictions(name, weighted):
    y, p, scores, losses = drawn()
    weight = np.random.default_rng(0).integers(0, 3, len(y)) if weighted else None
    options = {**AREAS[name], "sample_weight": weight}
    function = getattr(F, name)
    expected = function(y, p, **options)
    assert function(scores=scores, losses=losses, **options) == expected
    # Only the order of the scores matters, and the shape does not.
    found = function(
        scores=np.log(scores).reshape(20, 10),
        losses=losses.reshape(20, 10),
        **{
            **options,
            "sample_weight": None if weight is None else weight.reshape(20, 10),
        },
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_curve_of_own_scores():
    y, p, scores, losses = drawn()
    expected = F.risk_coverage_curve(y, p)
    found = F.risk_coverage_curve(scores=scores, losses=losses)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_any_loss_is_taken():
    scores, losses = [0.9, 0.5, 0.7], [0.25, 4.0, 1.0]
    # (0.25 + 1.25/2 + 5.25/3)/3
    assert F.aurc(scores=scores, losses=losses) == pytest.approx(0.875)
    assert np.isnan(F.aurc(scores=[0.9, np.nan], losses=[0.0, 1.0]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "`y_true` must be given: pass `y_true` and `y_pred`"),
        ({"scores": [1.0]}, "`losses` must be given: pass `scores` and `losses`"),
        ({"losses": [1.0]}, "`scores` must be given"),
        ({"scores": [1.0], "losses": [0.0, 1.0]}, r"`losses` must be of the shape"),
        ({"scores": [], "losses": []}, "an empty array"),
        ({"scores": [1.0], "losses": [0.0], "y_true": [0]}, "`y_true` must be left"),
        ({"scores": [1.0], "losses": ["a"]}, "`losses` must be an array of numbers"),
        (
            {"scores": [1.0], "losses": [0.0], "sample_weight": [0.0]},
            "`sample_weight` must be above 0",
        ),
    ],
)
@pytest.mark.parametrize("name", [*AREAS, "risk_coverage_curve"])
def test_errors_name_what_is_missing(name, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(F, name)(**AREAS.get(name, {}), **given)


def test_failures_are_0_or_1():
    with pytest.raises(ValueError, match="`losses` must be 0 or 1"):
        F.failure_auroc(scores=[0.5, 0.6], losses=[0.5, 1.0])


PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (F, calibrators, plots, csf)
    for name in module.__all__
    if name != "CalibrationLayer"
}


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures_are_spelled_out(name):
    if not callable(PUBLIC[name]):
        return
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        assert parameter.kind is not parameter.VAR_KEYWORD, parameter


OF_PREDICTIONS = ("ece", "cwece", "brier", "nll", "smooth_ece", "refinement", "aurc")


@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_empty_data_are_called_empty(name):
    with pytest.raises(ValueError, match="`y_pred` must be .*empty"):
        getattr(F, name)(np.zeros(0, int), np.zeros((0, 3)))


@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_help_shows_what_predictions_mean(name):
    names = inspect.signature(getattr(F, name)).parameters
    for option in ("from_logits", "multi_label", "ignore_class", "axis"):
        assert option in names
