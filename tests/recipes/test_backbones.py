"""Networks of keras-hub and keras-cv."""

import keras
import numpy as np
import pytest
from model_data import predict

from recipes import models


@pytest.fixture(autouse=True)
def blank(monkeypatch):
    """Initialises weights by 0: JAX would compile an initializer for each shape."""
    for initializer in (
        keras.initializers.TruncatedNormal,
        keras.initializers.VarianceScaling,
    ):
        monkeypatch.setattr(
            initializer,
            "__call__",
            lambda self, shape, dtype=None: keras.ops.zeros(shape, dtype),
        )


@pytest.mark.filterwarnings("ignore:Layer 'stage_0' looks like it has unbuilt state")
@pytest.mark.filterwarnings("ignore:Layer 'attn'")
def test_models_of_keras_hub_predict_and_start_from_a_preset(tmp_path):
    models_of_hub = pytest.importorskip("keras_hub").models
    for name, backbone, options in (
        ("keras_hub_vit_small", "ViTBackbone", {"mlp_dim": 8, "patch_size": 8}),
        ("keras_hub_deit_small", "DeiTBackbone", {"intermediate_dim": 8}),
    ):
        sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "patch_size": 8}
        small = getattr(models_of_hub, backbone)((16, 16, 3), **{**sizes, **options})
        small.save_to_preset(str(tmp_path / name))
        x = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
        model = models.build(name, 10, (16, 16, 3), preset=str(tmp_path / name))
        features = keras.Model(model.inputs, model.layers[-1].input)
        expected = keras.ops.convert_to_numpy(small(x))[:, 0]
        np.testing.assert_allclose(predict(features, x), expected, atol=1e-5)
        assert predict(model, x).shape == (2, 10)
    model = models.build("keras_hub_swin_tiny", 10, (224, 224, 3))
    assert 27_000_000 < model.count_params() < 28_000_000


def test_a_preset_of_keras_cv_gives_its_weights(tmp_path):
    keras_cv = pytest.importorskip("keras_cv")
    from keras_cv.src.utils.preset_utils import save_to_preset

    small = keras_cv.models.ResNetBackbone(
        stackwise_filters=[4, 8],
        stackwise_blocks=[1, 1],
        stackwise_strides=[1, 2],
        include_rescaling=True,
        input_shape=(32, 32, 3),
    )
    save_to_preset(small, str(tmp_path / "preset"))
    preset = str(tmp_path / "preset")
    model = models.build("keras_cv_resnet50", 10, (32, 32, 3), preset=preset)
    x = np.random.default_rng(0).uniform(size=(2, 32, 32, 3)).astype("float32")
    features = keras.Model(model.inputs, model.layers[-1].input)
    expected = keras.ops.convert_to_numpy(small(255 * x)).mean(axis=(1, 2))
    np.testing.assert_allclose(predict(features, x), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["keras_cv_resnet50", "keras_cv_resnet50_v2"])
def test_backbones_of_keras_cv_predict_and_are_saved_without_keras_cv(name, tmp_path):
    pytest.importorskip("keras_cv")
    model = models.build(name, 10, (64, 64, 3))
    assert 23_520_000 < model.count_params() < 23_600_000
    assert predict(model, np.zeros((1, 64, 64, 3))).shape == (1, 10)
    model.save(tmp_path / "model.keras")
    assert "keras_cv" not in (tmp_path / "model.keras").read_bytes().decode("latin1")


@pytest.mark.parametrize("name", ["keras_cv_resnet50", "keras_hub_vit_small"])
def test_a_preset_that_cannot_be_had_is_told_in_a_sentence(name, monkeypatch):
    """Without a network, the downloaders of both libraries raise errors of requests."""
    package = pytest.importorskip(name[: name.index("_", 6)])
    kind = "ResNetBackbone" if "cv" in name else "ViTBackbone"

    def offline(*_, **__):
        raise ConnectionError("HTTPSConnectionPool(host='example', port=443)")

    monkeypatch.setattr(getattr(package.models, kind), "from_preset", offline)
    with pytest.raises(ValueError, match=r"`preset` must be a folder") as caught:
        models.build(name, 10, (32, 32, 3), preset="resnet50_imagenet")
    assert str(caught.value).endswith("Received: preset='resnet50_imagenet'")
    assert "HTTPS" not in str(caught.value)
