"""Calibrators on the logits of real networks, beside published figures."""

import numpy as np
import pytest
from backends import numpy
from calibrator_data import ece
from real_data import load_logits

from keras_selcal.calibrators import (
    DirichletCalibration,
    MetaAcc,
    MetaMis,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)

pytestmark = pytest.mark.backend_free


# Figures published elsewhere
@pytest.fixture(scope="module")
def resnet110():
    data = load_logits("markus93_resnet110_c10_logits.npz")
    return [data[f"{s}_{w}"] for s in ("val", "test") for w in ("logits", "labels")]


def log_loss(p, y):
    return -np.log(p[np.arange(len(y)), y.astype(int)].astype("float64")).mean()


def test_temperature_scaling_on_cifar10(resnet110):
    z, y, test_z, test_y = resnet110
    calibrator = TemperatureScaling().fit(z, y)
    p = numpy(calibrator(test_z))
    assert calibrator.temperature == pytest.approx(2.395, abs=5e-4)
    assert log_loss(p, test_y) == pytest.approx(0.209261, abs=1e-6)
    assert 100 * ece(p, test_y) == pytest.approx(1.1321, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "published", "rel"),
    [
        (VectorScaling, 0.206245, 0.01),
        (DirichletCalibration, 0.205106, 0.01),
        (lambda: DirichletCalibration("l2"), 0.203025, 0.01),
        (StructuredVectorScaling, 0.20682, 0.002),
        (StructuredMatrixScaling, 0.20327, 0.002),
    ],
)
def test_parametric_calibrators_on_cifar10(resnet110, make, published, rel):
    z, y, test_z, test_y = resnet110
    p = numpy(make().fit(z, y)(test_z))
    assert log_loss(p, test_y) == pytest.approx(published, rel=rel)


def test_temperature_by_ece_on_cifar100():
    data = load_logits("mukhoti_cifar100_resnet50_logits.npz")
    calibrator = TemperatureScaling("ece").fit(data["val_logits"], data["val_labels"])
    p = numpy(calibrator(data["test_logits"]))
    assert calibrator.temperature == 1.1
    assert 100 * ece(p, data["test_labels"].ravel()) == pytest.approx(3.64, abs=5e-3)


@pytest.mark.parametrize("kind", ["mis", "acc"])
def test_meta_cal_on_mnist(kind):
    train = load_logits("metacal_mnist_train-logits.npz")
    test = load_logits("metacal_mnist_test-logits.npz")
    z, y = test["logits"], test["targets"]
    errors, figures = [], []
    for seed in range(10):
        calibrator = (
            MetaMis(0.05, seed=seed) if kind == "mis" else MetaAcc(0.999, seed=seed)
        )
        calibrator.fit(train["logits"], train["targets"])
        errors.append(100 * ece(numpy(calibrator(z)), y))
        figures.append(calibrator.evaluate(z, y))
    if kind == "mis":
        miscoverage = np.mean([f["miscoverage"] for f in figures])
        assert miscoverage == pytest.approx(0.05, abs=0.01)
        assert np.mean(errors) == pytest.approx(0.32, abs=0.1)
    else:
        accuracy = np.mean([f["accepted_accuracy"] for f in figures])
        assert accuracy == pytest.approx(0.999, abs=0.001)
        assert np.mean(errors) == pytest.approx(0.30, abs=0.1)
