"""The logarithm of the gamma function, which keras.ops lacks."""

import numpy as np
from backends import numpy, value_and_gradient
from keras import ops
from scipy.special import digamma, gammaln

from keras_selcal._formulas.kernels import lgamma1p


def test_lgamma1p_against_scipy():
    x = np.concatenate([[0.0], np.logspace(-6, 6, 3000)]).astype("float32")
    expected = gammaln(1 + x.astype("float64"))
    for found in (lgamma1p(x, ops), lgamma1p(x, np)):
        np.testing.assert_allclose(numpy(found), expected, rtol=2e-6, atol=1e-6)
    exact = lgamma1p(x.astype("float64"), np)
    np.testing.assert_allclose(exact, expected, rtol=2e-6, atol=1e-9)


def test_lgamma1p_gradient_is_digamma():
    x = np.array([0.0, 1e-4, 0.3, 1.0, 7.9, 8.0, 8.1, 100.0, 1e5], "float32")
    _, gradient = value_and_gradient(lambda x: ops.sum(lgamma1p(x, ops)), x)
    np.testing.assert_allclose(gradient, digamma(1 + x), rtol=1e-5, atol=1e-5)
