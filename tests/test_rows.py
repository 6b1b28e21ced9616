"""Statistics of rows: the largest value, its first place, the total."""

import numpy as np
import pytest
from backends import numpy, one_off
from keras import ops

from keras_selcal._backend import rows as rows_module
from keras_selcal._backend.ops import argmax
from keras_selcal._backend.rows import absolute_totals, summarized


def _predictions(rng, k, kind):
    p = rng.choice([1.0, 2.0, 3.0], (50, k))
    p[::5, 2] = 20 * k
    if kind == "unique":
        p = rng.permuted(np.tile(np.arange(1.0, k + 1), (50, 1)), axis=-1)
    p = (p / p.sum(-1, keepdims=True)).astype("float32")
    if kind == "bad":
        p[3], p[7, 1], p[9, 0] = np.nan, -2.0, -0.0
    return p


@pytest.mark.parametrize("kind", ["ties", "unique", "bad"])
@pytest.mark.parametrize("k", [3, 20, 40])
@pytest.mark.parametrize("of", [np.asarray, ops.convert_to_tensor])
def test_rows_are_summarized_as_by_numpy(rng, k, kind, of, monkeypatch):
    """Few and many columns, in one block of rows and in several."""
    p = _predictions(rng, k, kind)
    good = np.isfinite(p).all(-1)
    first = np.where(good, np.nan_to_num(p).argmax(-1), 0)
    index = np.where(np.arange(50) % 3, first, 1).astype("int32")
    function = _with_totals if of is np.asarray else one_off(_with_totals)
    for entries in (2**18, 28 * k):
        monkeypatch.setattr(rows_module, "_IN_CACHE", entries)
        for x in (p, np.log(np.abs(p) + 1e-30)):
            found = [numpy(part) for part in function(of(x), of(index))]
            largest, hit, total = (part[good] for part in found)
            np.testing.assert_array_equal(largest, x[good].max(-1))
            np.testing.assert_array_equal(hit, x[good].argmax(-1) == index[good])
            np.testing.assert_allclose(total, np.abs(x[good]).sum(-1), rtol=1e-5)
            assert np.isnan(found[2][~good]).all()
            np.testing.assert_allclose(
                numpy(absolute_totals(of(x))), found[2], rtol=1e-5
            )


def _with_totals(x, index):
    return tuple(summarized(x, index, True))


@pytest.mark.parametrize("k", [5, 40])
def test_argmax_is_the_first_of_the_largest(rng, k):
    for kind in ("ties", "unique"):
        p = _predictions(rng, k, kind)
        for x in (p, np.log(p)):
            found = numpy(one_off(argmax)(ops.convert_to_tensor(x)))
            np.testing.assert_array_equal(found[:, 0], x.argmax(-1))


def test_an_empty_batch_has_no_rows():
    x, index = np.zeros((0, 4), "float32"), np.zeros(0, "int32")
    assert [len(part) for part in summarized(x, index, True)] == [0, 0, 0]


def test_a_row_of_nan_does_not_hide_a_tie():
    x = np.array([[np.nan, 0.5], [0.5, 0.5]], "float32")
    found = summarized(x, np.array([0, 1]), True).found
    assert not found[1]
    assert not rows_module.largest_in_columns(x)[1]
