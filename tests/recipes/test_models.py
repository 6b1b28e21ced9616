"""The networks have the sizes, outputs and weights of the PyTorch networks."""

import sys

import keras
import numpy as np
import pytest
from backends import FEW_STEPS
from model_data import SMALL, outputs, parity, small, state_dict
from processes import computes_in
from real_data import find, load

from keras_selcal import functional
from recipes import models
from recipes.models import convert, pretrained

TRANSFORMERS = ("vit", "swin")

# The values of ImageNet, with which the published checkpoints were trained.
MEAN = np.array([0.485, 0.456, 0.406], "float32")
STD = np.array([0.229, 0.224, 0.225], "float32")


def timm_names(state):
    """Returns the state dict of Hugging Face as timm would write it."""
    named = {}
    for name, value in state.items():
        if ".key." in name or ".value." in name:
            continue
        if ".query." in name:
            value = np.concatenate(
                [state[name.replace("query", x)] for x in ("query", "key", "value")]
            )
        for hugging_face, timm in (
            ("vit.encoder.layer.", "blocks."),
            ("vit.", ""),
            ("swin.encoder.", ""),
            ("swin.", ""),
            ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
            ("embeddings.position_embeddings", "pos_embed"),
            ("embeddings.norm", "patch_embed.norm"),
            ("embeddings.cls_token", "cls_token"),
            ("attention.attention.query", "attn.qkv"),
            ("attention.self.query", "attn.qkv"),
            ("attention.self.", "attn."),
            ("attention.output.dense", "attn.proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
            ("layernorm_before", "norm1"),
            ("layernorm_after", "norm2"),
            ("layernorm", "norm"),
            ("layers.0.downsample", "layers.1.downsample"),
            ("classifier", "head.fc" if "swin.layernorm.bias" in state else "head"),
        ):
            name = name.replace(hugging_face, timm)
        named[name] = value
    return named


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


@pytest.fixture
def weights(tmp_path):
    """Returns a function that writes a state dict to a file."""

    def write(state, name="weights.npz"):
        np.savez(tmp_path / name, **state)
        return tmp_path / name

    return write


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("name", "num_classes", "count"),
    [
        ("resnet8", 10, 75_290),
        ("resnet20", 10, 269_722),
        ("resnet56", 10, 853_018),
        ("resnet50", 10, 23_520_842),
        ("resnet110", 10, 45_864_522),
        ("resnet110_basic", 10, 1_727_962),
        ("preresnet56", 10, 868_634),
        ("preresnet56_basic", 10, 855_578),
        ("wrn28_10", 10, 36_489_290),
        ("wrn28_10_original", 10, 36_479_194),
        ("vit_small", 1000, 22_050_664),
        ("swin_tiny", 1000, 28_288_354),
        ("cnn", 10, 19_562),
        ("cnn4", 10, 391_466),
        ("cnn4_narrow", 10, 98_970),
    ],
)
def test_networks_have_the_published_number_of_parameters(name, num_classes, count):
    model = models.build(name, num_classes)
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == count
    assert model.output_shape == (None, num_classes)


@pytest.mark.parametrize("name", SMALL)
def test_outputs_equal_pytorchs_and_stay_the_same_after_saving(name, weights, tmp_path):
    arrays = parity(name)
    model = small(name)
    models.load_pretrained(model, weights(state_dict(name)))
    logits = outputs(model, arrays["x"])
    np.testing.assert_allclose(logits, arrays["logits"], atol=1e-5)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(outputs(loaded, arrays["x"]), logits)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_weights_are_read_by_the_names_of_timm(name, weights):
    model, expected = small(name), small(name)
    models.load_pretrained(expected, weights(state_dict(name)))
    state = timm_names(state_dict(name))
    assert any(".attn.qkv." in key for key in state)
    buffers = {"layers.0.blocks.1.attn_mask": np.zeros(1)} if name == "swin" else {}
    models.load_pretrained(model, weights(state | buffers))
    for mine, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs)
        )
    # The two libraries differ in epsilon.
    norm, other = model.get_layer("norm"), expected.get_layer("norm")
    assert (norm.epsilon, other.epsilon) == (
        (1e-6, 1e-12) if name == "vit" else (1e-5, 1e-5)
    )


def test_a_head_for_another_number_of_classes_is_not_loaded(weights, capsys):
    model = small("vit", num_classes=3)
    model.get_layer("head").bias.assign([1.0, 2.0, 3.0])
    models.load_pretrained(model, weights(state_dict("vit")))
    assert "head is for 10 classes, not 3" in capsys.readouterr().out
    np.testing.assert_array_equal(outputs(model, parity("vit")["x"]), [[1, 2, 3]] * 4)
    expected = state_dict("vit")["vit.embeddings.cls_token"]
    token = keras.ops.convert_to_numpy(model.get_layer("tokens").cls_token)
    np.testing.assert_array_equal(token, expected)

    state = {k: v for k, v in state_dict("vit").items() if "classifier" not in k}
    models.load_pretrained(model, weights(state))
    assert "has no head" in capsys.readouterr().out


def test_a_file_that_does_not_fit_is_refused(weights):
    model = small("cifar_resnet")
    state = state_dict("cifar_resnet")
    del state["module.layer2.0.bn1.running_var"]
    state["module.layer9.0.conv1.weight"] = np.zeros((1, 1, 3, 3))
    state["module.conv1.weight"] = state["module.conv1.weight"][:, :, :2]
    with pytest.raises(ValueError, match="does not fit the model") as error:
        models.load_pretrained(model, weights(state))
    assert str(error.value).splitlines()[1:] == [
        "  conv1.weight has shape (2, 3, 3, 4) instead of (3, 3, 3, 4)",
        "  layer2_0_bn1.running_var is not in the file",
        "  layer9_0_conv1.weight is not in the model",
    ]
    assert not np.any(keras.ops.convert_to_numpy(model.get_layer("head").kernel))

    state = state_dict("cifar_resnet")
    del state["module.linear.bias"]
    path = weights(state)
    with pytest.raises(ValueError, match=r"head\.bias is not in the file"):
        models.load_pretrained(model, path)
    with pytest.raises(ValueError, match=r"ends in \.safetensors, \.npz, \.pth"):
        models.load_pretrained(model, "weights.h5")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        models.load_pretrained(model, "nowhere.npz")


def test_convert_writes_the_same_weights_as_safetensors(weights, tmp_path):
    state = state_dict("cifar_resnet")
    source, copy = weights(state), tmp_path / "weights.safetensors"
    if keras.backend.backend() == "torch":
        import torch

        source = tmp_path / "weights.th"
        tensors = {name: torch.tensor(value) for name, value in state.items()}
        torch.save({"epoch": 3, "state_dict": tensors}, source)
    convert.main([str(source), str(copy)])
    read = pretrained.read(copy)
    assert read.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(read[name], value)
    with pytest.raises(SystemExit, match="usage"):
        convert.main([str(source)])


def test_the_error_for_a_missing_package_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "weights.pth").touch()
    (tmp_path / "weights.safetensors").touch()
    for missing in (
        "torch",
        "safetensors",
        "safetensors.numpy",
        "keras_cv",
        "keras_hub",
    ):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"python -m recipes\.models\.convert"):
        pretrained.read(tmp_path / "weights.pth")
    with pytest.raises(ImportError, match=r"`pip install safetensors`"):
        pretrained.read(tmp_path / "weights.safetensors")
    with pytest.raises(ImportError, match="`pip install keras-cv tensorflow`"):
        models.build("keras_cv_resnet50", 10)
    with pytest.raises(ImportError, match="`pip install keras-hub"):
        models.build("keras_hub_vit_small", 10)


def test_unknown_names_and_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match=r"'resnet50', 'resnet110', .*'renset50'"):
        models.build("renset50", 10)
    with pytest.raises(ValueError, match="`num_classes` must be an integer"):
        models.build("cnn", 0)
    with pytest.raises(ValueError, match=r"`model` must be mlp .*shape \(32, 32\)"):
        models.build("cnn", 10, (32, 32))
    with pytest.raises(ValueError, match="`input_shape` must be"):
        models.build("cnn", 10, (32, 32, 0))
    with pytest.raises(ValueError, match=r"multiples of 16.*100"):
        models.build("vit_small", 10, (100, 96, 3))
    for shape in ((64, 64, 3), (224, 448, 3), (226, 226, 3), (4, 4, 3)):
        with pytest.raises(ValueError, match=r"such as \(224, 224, 3\)"):
            models.build("swin_tiny", 10, shape)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_train_in_mixed_precision(name, weights):
    if not computes_in("bfloat16"):
        pytest.skip("this machine does not compute in bfloat16")
    arrays = parity(name)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = small(name)
    finally:
        keras.config.set_dtype_policy("float32")
    models.load_pretrained(model, weights(state_dict(name)))
    assert model.output.dtype == "float32"
    assert model.layers[-2].compute_dtype == "bfloat16"

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, **FEW_STEPS)
    before = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    model.fit(arrays["x"], np.arange(4), verbose=0)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        new = keras.ops.convert_to_numpy(variable)
        assert np.isfinite(new).all(), variable.path
        assert not np.array_equal(new, old), variable.path


def test_layers_of_a_transformer_have_different_initial_weights():
    model = small("swin")
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    assert len({layer.kernel_initializer.seed for layer in dense}) == len(dense)
    assert {layer.kernel_initializer.stddev for layer in dense} == {0.02}
    drop = [x.rate for x in model.layers if isinstance(x, keras.layers.Dropout)]
    np.testing.assert_allclose(drop, [0.05, 0.05, 0.1, 0.1])


@pytest.mark.parametrize(
    ("name", "accuracy", "ece"),
    [("resnet20", 91.73, 5.317), ("resnet56", 93.39, 4.645)],
)
def test_pretrained_networks_have_the_published_accuracy_and_ece(name, accuracy, ece):
    """Needs cifar10.npz, with x_test and y_test, in the folder of real data."""
    data = load("cifar10.npz")
    suffix = "th" if keras.backend.backend() == "torch" else "safetensors"
    model = models.build(name, 10)
    models.load_pretrained(model, find(f"weights/{name}.{suffix}"))
    x, y = (data["x_test"] / np.float32(255) - MEAN) / STD, data["y_test"]
    logits = model.predict(x, batch_size=100, verbose=0)
    assert np.mean(logits.argmax(-1) == y) * 100 == pytest.approx(accuracy, abs=0.005)
    found = functional.ece(y, logits, from_logits=True) * 100
    assert found == pytest.approx(ece, abs=0.002)
