"""The choice of a score on held-out data."""

import numpy as np
import pytest
import reference
from real_data import load_logits

from keras_selcal import csf
from keras_selcal import functional as F  # noqa: N812


def scaled_logits(rng, n, k=20):
    """Logits of networks whose scale says nothing: the norm is best divided out."""
    y = rng.integers(0, k, n)
    signal = 3 * np.eye(k)[y] + rng.normal(size=(n, k))
    return signal * np.exp(rng.normal(size=(n, 1))), y


def test_choose_finds_the_norm_where_the_scale_of_logits_says_nothing(rng):
    logits, y = scaled_logits(rng, 3000)
    found = csf.compare(logits[:1500], y[:1500])
    assert isinstance(found.csf, csf.MaxLogitPNorm)
    assert found.interval[0] < found.gain < found.interval[1]
    assert found.gain == pytest.approx(
        F.aurc(y[:1500], logits[:1500], from_logits=True)
        - F.aurc(y[:1500], logits[:1500], csf=found.csf, from_logits=True)
    )
    chosen = csf.choose(logits[:1500], y[:1500])
    assert chosen.p == found.csf.p
    new = {"y_true": y[1500:], "y_pred": logits[1500:], "from_logits": True}
    assert F.aurc(**new, csf=chosen) < 0.9 * F.aurc(**new)


def test_choose_falls_back_to_msp_where_nothing_is_gained(rng):
    # Logits of a calibrated model: msp is the best score there is.
    logits = rng.normal(size=(2000, 5), scale=2)
    p = reference.softmax(logits)
    y = (p.cumsum(axis=-1) > rng.uniform(size=(2000, 1))).argmax(axis=-1)
    assert csf.choose(logits, y) == "msp"
    # Few errors cannot tell.
    logits, y = scaled_logits(rng, 60)
    assert csf.choose(logits, y) == "msp"


def test_choose_among_scores_of_probabilities(rng):
    logits, y = scaled_logits(rng, 500)
    found = csf.compare(reference.softmax(logits), y, from_logits=False)
    assert set(found.aurc) == {"msp", "margin", "neg_entropy", "doctor", "gen"}


@pytest.mark.parametrize(
    ("file", "msp", "chosen"),
    [
        ("mukhoti_cifar100_resnet50_logits.npz", 77.84, 65.56),
        ("markus93_resnet110_c10_logits.npz", 8.269, 8.089),
    ],
)
@pytest.mark.backend_free
def test_the_norm_chosen_on_held_out_data_lowers_aurc(file, msp, chosen):
    data = load_logits(file)
    score = csf.choose(data["val_logits"], data["val_labels"].ravel())
    y, logits = data["test_labels"].ravel(), data["test_logits"]
    assert 1e3 * F.aurc(y, logits, from_logits=True) == pytest.approx(msp, abs=0.01)
    found = 1e3 * F.aurc(y, logits, csf=score, from_logits=True)
    assert found == pytest.approx(chosen, abs=0.01)


@pytest.mark.backend_free
def test_msp_stays_on_mnist():
    data = load_logits("metacal_mnist_test-logits.npz")
    logits, y = data["logits"], data["targets"].ravel()
    for held_out in (slice(None, None, 2), slice(3000)):
        assert csf.choose(logits[held_out], y[held_out]) == "msp"
    for half, expected in ((slice(5000), 0.387), (slice(5000, None), 0.056)):
        found = 1e3 * F.aurc(y[half], logits[half], from_logits=True)
        assert found == pytest.approx(expected, abs=1e-3)
    # On the last 7,000 images the best norm, p = 2, raises AURC.
    new = {"y_true": y[3000:], "y_pred": logits[3000:], "from_logits": True}
    assert 1e3 * F.aurc(**new) == pytest.approx(0.0853, abs=1e-4)
    found = 1e3 * F.aurc(**new, csf=csf.MaxLogitPNorm(2))
    assert found == pytest.approx(0.1024, abs=1e-4)


def test_candidates_can_be_named(rng):
    logits, y = scaled_logits(rng, 100)
    found = csf.compare(logits, y, candidates=["gen", csf.energy])
    assert list(found.aurc) == ["msp", "gen", "energy"]
    assert f"with {(logits.argmax(axis=-1) != y).sum()} errors" in str(found)
    with pytest.raises(ValueError, match="'energy' needs logits"):
        csf.compare(
            reference.softmax(logits), y, candidates=["energy"], from_logits=False
        )
    alone = csf.compare(logits, y, candidates=[])
    assert alone.csf is csf.msp
    assert alone.gain == 0


def test_nothing_is_chosen_on_predictions_with_nan(rng):
    z = rng.normal(size=(40, 3))
    z[3, 1] = np.nan
    with pytest.raises(ValueError, match="`logits` must be predictions without NaN"):
        csf.choose(z, rng.integers(0, 3, 40))


def test_msp_among_the_candidates_is_no_candidate_of_its_own(rng):
    logits, y = scaled_logits(rng, 400)

    def worst(p):
        return -p.max(-1) if isinstance(p, np.ndarray) else -csf.msp(p)

    worst.support = (-1.0, 0.0)
    alone = csf.compare(logits, y, candidates=[worst])
    both = csf.compare(logits, y, candidates=["msp", worst])
    assert both.gain == alone.gain < 0
