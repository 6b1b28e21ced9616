"""Quantiles, β and α of arrays and of tensors, by the same formulas."""

import functools

import numpy as np
import pytest
import reference
from backends import numpy, one_off
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_selcal._formulas import soft_cdf
from keras_selcal._formulas.harmonic import rank_weights, tie_groups


def quantile(u, q, count):
    count = count[None].astype("float32")
    row, counts = ops.convert_to_tensor(u[None]), ops.convert_to_tensor(count)
    tau = numpy(soft_cdf.quantile(row, counts, float(q), ops))[0, 0]
    by_numpy = soft_cdf.quantile(u[None], count, float(q), np)
    assert by_numpy.dtype == u.dtype
    np.testing.assert_allclose(by_numpy[0, 0], tau, atol=3e-7)
    return tau


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_quantile_is_numpys(values, q, seed):
    u = np.array(values, "float32")
    q = np.float32(q)
    copies = np.random.default_rng(seed).integers(0, 4, len(u))
    copies[0] += 1
    got = quantile(u, q, np.ones(len(u)))
    np.testing.assert_allclose(got, np.quantile(u.astype("float64"), q), atol=3e-7)
    got = quantile(u, q, copies)
    expected = np.quantile(np.repeat(u, copies).astype("float64"), q)
    np.testing.assert_allclose(got, expected, atol=3e-7)


def test_quantile_of_crowded_scores_is_an_order_statistic():
    u = np.array([1.0, 1 - 2**-24, 1 - 2**-23, 1 - 2**-22, 0.0], "float32")
    for q, expected in zip((0, 0.25, 0.5, 0.75, 1), np.sort(u), strict=True):
        assert quantile(u, q, np.ones(5)) == expected


# Two shapes: each is compiled once.
SCORES = {
    "rows": lambda rng: rng.beta(4, 0.3, (3, 60)),
    "ties": lambda rng: rng.beta(4, 0.3, (3, 60)).round(1),
    "all_tied": lambda rng: np.full((3, 60), 0.25),
    "ends": lambda rng: rng.integers(0, 2, (3, 60)),
    "nan": lambda rng: np.where(rng.random((3, 60)) < 0.1, np.nan, 0.5),
    "one_sample": lambda rng: np.full((1, 1), 0.7),
}
COUNTS = {
    "none": lambda rng, shape: None,
    "zeros": lambda rng, shape: np.zeros(shape),
    "integers": lambda rng, shape: rng.integers(0, 4, shape),
    "normalised": lambda rng, shape: np.full(shape, 1 / shape[-1]),
    "bad": lambda rng, shape: np.where(rng.random(shape) < 0.5, np.nan, -1.0),
}
REGIONS = [
    {"level": 0.75, "threshold": None, "smoothing": 0.1},
    {"level": 1.0, "threshold": None, "smoothing": 0.001},
    {"level": 0.3, "threshold": None, "smoothing": 0.1, "through": "cdf"},
    {"level": None, "threshold": 0.4, "smoothing": 0.02},
]
COMMON = {"support": (0.0, 1.0), "num_bins": 16}
# α of a small fraction of a rank has few digits in float32.
WEIGHTS = [
    (functools.partial(rank_weights, estimator="harmonic"), 2e-3),
    (functools.partial(rank_weights, estimator="log"), 2e-3),
    *(
        (functools.partial(soft_cdf.au_weights, **COMMON, **region), 1e-4)
        for region in REGIONS
    ),
]
OF_TENSORS = [one_off(functools.partial(weigh, xp=ops)) for weigh, _ in WEIGHTS]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("scores", SCORES)
def test_weights_of_tensors_are_those_of_arrays(rng, scores, counts):
    s = SCORES[scores](rng).astype("float32")
    weight = COUNTS[counts](rng, s.shape)
    weight = None if weight is None else weight.astype("float32")
    tensors = [None if x is None else ops.convert_to_tensor(x) for x in (s, weight)]
    for (weigh, tolerance), of_tensors in zip(WEIGHTS, OF_TENSORS, strict=True):
        with np.errstate(all="ignore"):
            found = weigh(s, weight, xp=np)
        assert found.dtype == s.dtype
        expected = numpy(of_tensors(*tensors))
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=2e-6)


@pytest.mark.backend_free
def test_weights_in_double_precision(rng):
    s = np.round(rng.uniform(size=(2, 200)), 2)
    options = {**COMMON, **REGIONS[0], "num_bins": 64}
    for row, b, a in zip(
        s,
        soft_cdf.au_weights(s, None, **options, xp=np),
        rank_weights(s, None, "harmonic", xp=np),
        strict=True,
    ):
        np.testing.assert_allclose(b, reference.au_weights(row), rtol=1e-6)
        np.testing.assert_allclose(a, reference.aurc_weights(row), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tie_groups_are_ordered_as_the_values(rng, dtype):
    smallest = np.finfo("float32").smallest_normal
    ends = [-1e38, -smallest, -0.0, 0.0, smallest, 1e38]
    x = np.concatenate([ends, rng.integers(-4, 4, 18) / 4])
    x = rng.permuted(np.stack([x, x]), axis=1).astype(dtype)
    group = numpy(one_off(lambda x: tie_groups(x, ops))(ops.convert_to_tensor(x)))
    assert group.min() >= 0
    assert group.max() < x.shape[1]
    for ours, values in zip(group, x, strict=True):
        order = np.sign(values[:, None] - values)
        np.testing.assert_array_equal(np.sign(ours[:, None] - ours), order)
