"""The soft CDF and the sample weights by rank, against float64 references."""

import numpy as np
import pytest
import reference
from backends import numpy, value_and_gradient
from keras import ops

from keras_selcal import functional


def confident(rng, n):
    """Scores that crowd near 1, as a good network's do; 1 itself among them.

    Where n is of no matter it is 60, 128 or 4096: JAX compiles every operation for
    each.
    """
    return np.minimum(rng.beta(4, 0.3, n).astype("float32"), np.float32(1))


SMOOTHING = [1.0, 0.1, 0.02, 0.005, 0.003, 0.001]


@pytest.mark.parametrize(
    ("num_bins", "smoothing"),
    [*((64, smoothing) for smoothing in SMOOTHING), (1, 0.1), (7, 0.1)],
)
def test_soft_cdf_values(rng, smoothing, num_bins):
    # A batch of one or two takes the same way whatever the number of bins.
    for n in (1, 2, 128) if num_bins == 7 else (128,):
        s = confident(rng, n)
        expected = reference.soft_cdf(s.astype("float64"), s, num_bins, smoothing)
        got = numpy(functional.soft_cdf(s, num_bins=num_bins, smoothing=smoothing))
        np.testing.assert_allclose(got, expected, atol=5e-6)


def test_soft_cdf_counts_a_score_of_one():
    cdf = functional.soft_cdf(np.ones(9, "float32"), at=[0.9, 1.0], smoothing=1e-3)
    np.testing.assert_allclose(numpy(cdf), [0.0, 0.9], atol=1e-3)


def test_soft_cdf_support_and_shape(rng):
    s = rng.uniform(size=(12, 5)).astype("float32")
    plain = numpy(functional.soft_cdf(s))
    shifted = numpy(functional.soft_cdf(10 * s - 3, support=(-3, 7)))
    assert plain.shape == s.shape
    np.testing.assert_allclose(shifted, plain, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.5, 0.1, 0.02, 0.001])
def test_soft_cdf_gradient_flows_to_the_points_alone(rng, smoothing):
    s = confident(rng, 60)
    at = rng.uniform(0.05, 0.95, 60).astype("float32")
    _, gradient = value_and_gradient(
        lambda at: ops.sum(functional.soft_cdf(s, at, smoothing=smoothing)), at
    )
    expected = reference.soft_cdf_slope(s.astype("float64"), at, smoothing=smoothing)
    np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-4 / smoothing / 4)
    _, gradient = value_and_gradient(
        lambda s: ops.sum(functional.soft_cdf(s, at, smoothing=smoothing)), s
    )
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize(
    ("n", "smoothing"),
    [*((128, nu) for nu in (1.0, 0.1, 0.01, 0.001)), (1, 0.1), (4096, 0.1)],
)
def test_au_weights_values(rng, n, smoothing):
    s = confident(rng, n)
    for quantile in (0.3, 0.75, 1.0):
        expected = reference.au_weights(
            s.astype("float64"), quantile, smoothing=smoothing
        )
        got = functional.au_weights(s, quantile, smoothing=smoothing)
        # Ĝ near 1 − 1/n in float32 bounds what ln(1 − Ĝ) can know.
        np.testing.assert_allclose(
            numpy(got), expected, rtol=1e-5 + 1e-8 * n, atol=1e-6
        )


def test_au_weights_threshold(rng):
    s = confident(rng, 128)
    expected = reference.au_weights(s.astype("float64"), tau=0.9)
    np.testing.assert_allclose(
        numpy(functional.au_weights(s, threshold=0.9)), expected, rtol=1e-5
    )
    # Nothing lies below the lowest threshold: all weigh alike, and −ln(1 − G)/G → 1.
    high = (1 + s) / 2
    flat = numpy(functional.au_weights(high, threshold=0.0, smoothing=1e-3))
    np.testing.assert_allclose(flat, 1.0, rtol=1e-5)


def test_au_weights_never_exceed_the_top_rank(rng):
    s = np.linspace(0, 1, 128, dtype="float32")
    weights = numpy(
        functional.au_weights(s, quantile=1.0, smoothing=1e-4, num_bins=999)
    )
    assert weights.max() <= np.log(129) * 129 / 128 * (1 + 1e-5)


def test_au_weights_approach_the_aurc(rng):
    """Coverage → 1 and ν → 0 turn β into AURC's −ln(1 − G)."""
    s = rng.uniform(size=4096).astype("float32")
    losses = rng.exponential(size=4096) * (1.2 - s)
    aurc = np.mean(reference.aurc_weights(s) * losses)
    gaps = []
    for smoothing in (0.1, 0.03, 0.01, 0.003):
        weights = functional.au_weights(s, 1.0, smoothing=smoothing, num_bins=2000)
        gaps.append(abs(np.mean(numpy(weights) * losses) - aurc) / aurc)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


def test_au_weights_against_monte_carlo_of_the_definition(rng):
    """Eq. AUdef: the mean, over x̃ below τ, of the selective risk at g(x̃)."""
    n, quantile = 4096, 0.6
    s = rng.beta(3, 1, n)
    losses = rng.exponential(size=n) * (1.3 - s)
    order = np.argsort(s)
    selective = np.cumsum(losses[order][::-1])[::-1] / np.arange(n, 0, -1)
    drawn = rng.integers(0, int(quantile * n), 200_000)
    expected = selective[drawn].mean()
    weights = functional.au_weights(
        s.astype("float32"), quantile, smoothing=0.002, num_bins=1000
    )
    np.testing.assert_allclose(np.mean(numpy(weights) * losses), expected, rtol=5e-3)


WEIGHTINGS = {
    "au": functional.au_weights,
    "au_sharp": lambda s, sample_weight=None: functional.au_weights(
        s, quantile=1.0, smoothing=0.001, sample_weight=sample_weight
    ),
    "aurc": functional.aurc_weights,
    "aurc_log": lambda s, sample_weight=None: functional.aurc_weights(
        s, "log", sample_weight=sample_weight
    ),
}


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_integer_weight_is_that_many_copies(rng, name):
    weigh = WEIGHTINGS[name]
    for copies in ([2], rng.permutation([0, 0, 0, 1, 2, 3] * 10)):
        s = np.round(confident(rng, len(copies)), 2)
        which = np.repeat(np.arange(len(s)), copies)
        weighted = numpy(weigh(s, sample_weight=copies))
        assert np.isfinite(weighted).all()
        np.testing.assert_allclose(
            weighted[which], numpy(weigh(s[which])), rtol=1e-4, atol=2e-6
        )


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weight_zero_changes_nothing_for_the_others(rng, name):
    weigh = WEIGHTINGS[name]
    s = confident(rng, 128)
    mask = rng.permutation(128) < 60
    masked = numpy(weigh(s, sample_weight=mask.astype("float32")))
    np.testing.assert_allclose(masked[mask], numpy(weigh(s[mask])), rtol=1e-5)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_only_ratios_of_small_weights_matter(rng, name):
    weigh = WEIGHTINGS[name]
    s = confident(rng, 60)
    weight = rng.uniform(0.1, 1, 60).astype("float32")
    np.testing.assert_allclose(
        numpy(weigh(s, sample_weight=weight / weight.sum())),
        numpy(weigh(s, sample_weight=weight)),
        rtol=1e-4,
    )
    uniform = np.full(60, 1 / 60, "float32")
    np.testing.assert_allclose(
        numpy(weigh(s, sample_weight=uniform)), numpy(weigh(s)), rtol=1e-4
    )


@pytest.mark.parametrize("estimator", ["harmonic", "log"])
@pytest.mark.parametrize("n", [1, 128, 4096])
def test_aurc_weights_values(rng, estimator, n):
    distinct = rng.permutation(n).astype("float32") / n
    for s, tolerance in ((distinct, 2e-6), (np.round(distinct, 1), 1e-3)):
        np.testing.assert_allclose(
            numpy(functional.aurc_weights(s, estimator)),
            reference.aurc_weights(s, estimator),
            rtol=tolerance,
            atol=2e-6,
        )


def test_harmonic_weights_give_the_mean_of_prefix_risks(rng):
    n = 128
    s = rng.permutation(n).astype("float32")
    losses = rng.uniform(size=n)
    risks = np.cumsum(losses[np.argsort(-s)]) / np.arange(1, n + 1)
    got = np.mean(numpy(functional.aurc_weights(s)) * losses)
    np.testing.assert_allclose(got, risks.mean(), rtol=1e-5)


def test_aurc_weights_carry_no_gradient(rng):
    s = rng.uniform(size=60).astype("float32")
    _, gradient = value_and_gradient(lambda s: ops.sum(functional.aurc_weights(s)), s)
    np.testing.assert_array_equal(gradient, 0.0)


def test_paper_smoothing():
    assert functional.paper_smoothing(0.1, 10) == pytest.approx(0.7577519)
    assert functional.paper_smoothing(0.005, 100) == pytest.approx(0.2989781)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: functional.soft_cdf(s, smoothing=0), ["smoothing", "0", "above 0"]),
        (lambda s: functional.soft_cdf(s, smoothing=float("nan")), ["smoothing"]),
        (lambda s: functional.soft_cdf(s, num_bins=0), ["num_bins", "0", "at least 1"]),
        (lambda s: functional.soft_cdf(s, num_bins=2.5), ["num_bins", "2.5"]),
        (lambda s: functional.soft_cdf(s, support=(1, 0)), ["support", "(1, 0)"]),
        (lambda s: functional.soft_cdf(s, support=3), ["support", "3"]),
        (lambda s: functional.au_weights(s, 0.0), ["quantile", "0.0", "(0, 1]"]),
        (lambda s: functional.au_weights(s, 1.1), ["quantile", "1.1", "(0, 1]"]),
        (
            lambda s: functional.au_weights(s, 0.5, threshold=0.5),
            ["quantile", "threshold"],
        ),
        (
            lambda s: functional.au_weights(s, 0.75, threshold=0.5),
            ["quantile", "threshold"],
        ),
        (lambda s: functional.au_weights(s, threshold=2), ["threshold", "2", "[0, 1]"]),
        (lambda s: functional.aurc_weights(s, "x"), ["estimator", "x", "harmonic"]),
        (lambda s: functional.paper_smoothing(-1, 10), ["nu", "-1"]),
        (lambda s: functional.paper_smoothing(1, 1), ["k", "1", "at least 2"]),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError) as error:
        call(np.array([0.2, 0.8], "float32"))
    assert all(word in str(error.value) for word in words)
