"""Elementary functions, of arrays and of tensors."""

import numpy as np
import pytest
import reference
from backends import numpy, value_and_gradient
from keras import ops

from keras_selcal._formulas import functions


def both(function, x):
    """Returns a function of an array, after a comparison with that of a tensor."""
    of_array = function(x, np)
    of_tensor = numpy(function(ops.convert_to_tensor(x), ops))
    np.testing.assert_allclose(of_tensor, of_array, rtol=1e-5, atol=1e-6)
    return of_array


def test_safe_log_is_finite_at_zero():
    x = np.array([0.0, 1e-30, 0.5, 1.0], "float32")
    assert np.isfinite(both(functions.safe_log, x)).all()
    _, gradient = value_and_gradient(lambda x: ops.sum(functions.safe_log(x, ops)), x)
    assert gradient[0] == 0.0
    np.testing.assert_allclose(gradient[1:], 1 / x[1:], rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_softmax(rng, scale):
    x = rng.normal(size=(24, 5), scale=scale).astype("float32")
    expected = reference.softmax(x)
    np.testing.assert_allclose(both(functions.softmax, x), expected, rtol=1e-5)
    log_p = both(functions.log_softmax, x)
    np.testing.assert_allclose(log_p, reference.log_softmax(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_make_a_whole_row_nan(bad):
    """Whatever the backend's own softmax does with them."""
    x = np.zeros((24, 5), "float32")
    x[3, 1] = bad
    with np.errstate(invalid="ignore"):
        for function in (functions.softmax, functions.log_softmax):
            found = both(function, x)
            assert np.isnan(found[3]).all()
            assert np.isfinite(np.delete(found, 3, axis=0)).all()


def test_masked_classes_have_a_finite_logarithm():
    x = np.array([[0.0, -np.inf, 0.0], [-np.inf, 5.0, -np.inf]], "float32")
    expected = [[-np.log(2), -1e4, -np.log(2)], [-1e4, 0, -1e4]]
    np.testing.assert_allclose(both(functions.log_softmax, x), expected, atol=1e-6)
    _, gradient = value_and_gradient(
        lambda x: ops.sum(ops.square(functions.log_softmax(x, ops)[:, :1])), x
    )
    assert np.isfinite(gradient).all()


def test_the_first_of_the_largest(rng):
    x = rng.integers(0, 3, (24, 5)).astype("float32")
    x[0] = [-0.0, 0.0, -0.0, 0.0, -0.0]
    found = both(functions.first_largest, x)
    np.testing.assert_array_equal(found[:, 0], x.argmax(axis=-1))


def test_sums_by_cell(rng):
    values = rng.normal(size=(3, 24)).astype("float32")
    cells = rng.integers(0, 4, (3, 24)).astype("float32")
    expected = np.zeros((3, 4))
    np.add.at(expected, (np.arange(3)[:, None], cells.astype(int)), values)
    for xp, of in ((np, np.asarray), (ops, ops.convert_to_tensor)):
        found = functions.sum_by_cell(of(values), of(cells), 4, xp)
        np.testing.assert_allclose(numpy(found), expected, rtol=1e-5, atol=1e-6)
