"""The settings equal an independent copy typed from the paper."""

import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest

import keras_selcal
from recipes import losses, settings
from recipes.paper.released import DualFocalVariant
from recipes.settings import override, with_epochs
from recipes.tasks import RunError, Task

pytestmark = pytest.mark.backend_free

# Typed from the paper's appendix, row by row, in the order of its columns.
COLUMNS = [
    *itertools.product(
        ["cifar10", "cifar100"], ["resnet50", "resnet110", "wrn28_10", "preresnet56"]
    ),
    ("tiny-imagenet", "vit_small"),
    ("tiny-imagenet", "swin_tiny"),
]
GAMMA_DUAL = "5.0 4.5 2.6 4.0  5.0 6.1 3.9 4.5  1.0 1.0"
GAMMA_INVERSE = "2.0 3.0 1.5 2.0  1.0 1.5 1.0 1.0  1.0 1.0"
COVERAGE = "0.88 0.75 0.8 0.75  0.75 0.8 0.8 0.92  0.4 0.6"
SMOOTHING = "0.1 0.1 0.1 0.1  0.005 0.005 0.1 0.01  0.05 0.05"


@pytest.mark.parametrize(
    ("loss", "argument", "row"),
    [
        ("dual_focal", "gamma", GAMMA_DUAL),
        ("inv_focal", "gamma", GAMMA_INVERSE),
        ("au", "quantile", COVERAGE),
        ("au", "smoothing", SMOOTHING),
    ],
)
def test_hyperparameters_are_those_of_the_papers_tables(loss, argument, row):
    found = [settings.settings(*column, loss).loss[argument] for column in COLUMNS]
    assert found == [float(number) for number in row.split()]
    assert set(settings.TUNED) == set(COLUMNS)


@pytest.mark.parametrize(("dataset", "model"), COLUMNS)
@pytest.mark.parametrize("loss", settings.LOSSES)
def test_training_is_that_of_the_papers_appendix(dataset, model, loss):
    found = settings.settings(dataset, model, loss)
    assert (found.momentum, found.weight_decay) == (0.9, 0.0005)
    if dataset == "tiny-imagenet":
        assert (found.batch_size, found.learning_rate) == (256, 0.0001)
        assert (found.schedule, found.epochs, found.warmup_epochs) == ("cosine", 90, 20)
        assert found.image_size == 224
    else:
        assert (found.batch_size, found.learning_rate) == (128, 0.1)
        assert (found.schedule, found.decay) == ("steps", 0.2)
        assert found.milestones == (60, 120, 160)
        assert found.epochs == {"cifar10": 200, "cifar100": 250}[dataset]
        assert found.warmup_epochs == 40
        assert found.image_size is None
    assert "paper" in found.source
    assert "not in" not in found.source


def test_source_names_what_differs_from_the_paper():
    def source(model, **options):
        return settings.settings("cifar10", model, "xe", **options).source

    assert source("resnet110") == "paper, appendix"
    assert "not the network of its code, resnet110" in source("resnet110_basic")
    assert "not in the paper" in source("resnet20", from_scratch=True)
    tiny = settings.settings("tiny-imagenet", "vit_small", "xe", from_scratch=True)
    assert "from scratch, where the paper fine-tunes" in tiny.source


@pytest.mark.parametrize("model", settings.TRANSFORMERS)
def test_transformers_need_pretrained_weights_or_from_scratch(model):
    task = Task("tiny-imagenet", model, "xe")
    with pytest.raises(RunError, match="--pretrained FILE, or --from-scratch"):
        assert task.settings
    tuned = dataclasses.replace(task, pretrained="weights.npz")
    assert "from scratch" not in tuned.settings.source
    scratch = dataclasses.replace(task, from_scratch=True)
    assert "from scratch" in scratch.settings.source
    assert scratch.arguments()[-1] == "--from-scratch"
    with pytest.raises(RunError, match="at most one of"):
        assert dataclasses.replace(scratch, pretrained="weights.npz").settings


def test_losses_have_the_papers_arguments():
    kde_weight = {
        dataset: settings.settings(dataset, "resnet50", "kde_xe").loss["kde_weight"]
        for dataset in ("cifar10", "cifar100")
    }
    assert kde_weight == {"cifar10": 0.3, "cifar100": 0.5}
    tiny = settings.settings("tiny-imagenet", "vit_small", "kde_xe")
    assert "not stated" in tiny.source
    dual = settings.settings("cifar10", "resnet50", "dual_focal").loss
    assert dual["variant"] == "released"
    csfs = [settings.settings(*column, "au").loss["csf"] for column in COLUMNS[4:]]
    assert csfs == ["msp", "msp", "msp", "msp", "neg_entropy", "msp"]
    assert settings.settings("cifar10", "cnn", "aurc", csf="margin").loss == {
        "csf": "margin",
        "estimator": "harmonic",
        "base_loss": "crossentropy",
    }


def test_smoothing_of_msp_is_converted_where_weights_have_a_gradient():
    """ν divided by the range of max softmax(softmax(z)), whose ends are known."""
    for dataset, model, k in (
        ("cifar10", "resnet50", 10),
        ("cifar100", "resnet110", 100),
        ("tiny-imagenet", "swin_tiny", 200),
    ):
        paper = settings.settings(dataset, model, "au").loss
        assert paper["weight_gradient"] == 0.0
        converted = settings.settings(dataset, model, "au", weight_gradient=1).loss
        ends = [np.full(k, 1 / k), np.eye(k)[0]]
        low, high = (np.max(np.exp(p) / np.exp(p).sum()) for p in ends)
        assert converted["smoothing"] == pytest.approx(
            paper["smoothing"] / (high - low)
        )
        assert converted["weight_gradient"] == 1.0
        # The conversion is known for "msp" only.
        for csf in ("margin", "neg_entropy"):
            other = settings.settings(dataset, model, "au", csf=csf, weight_gradient=1)
            assert other.loss["smoothing"] == paper["smoothing"]
    for change, smoothing in (("loss.weight_gradient=1", 0.757), ("epochs=9", 0.1)):
        task = Task("cifar10", "resnet50", "au", set=(change,))
        assert task.settings.loss["smoothing"] == pytest.approx(smoothing, abs=1e-3)
    with pytest.raises(ValueError, match="`weight_gradient` must be a number"):
        settings.settings("cifar10", "resnet50", "au", weight_gradient="all")


@pytest.mark.parametrize("loss", settings.LOSSES)
def test_every_pair_has_settings_that_build_its_loss(loss):
    names = (*settings.TRAINING, "folder:x")
    for dataset, model in itertools.product(names, settings.MODELS):
        if dataset == "folder":
            continue
        found = settings.settings(dataset, model, loss)
        restored = settings.Settings(
            **json.loads(json.dumps(dataclasses.asdict(found)))
        )
        assert restored == found
        assert found.warmup_epochs < found.epochs
        built = losses.build(loss, found.loss)
        config = built.get_config()
        for argument, value in found.loss.items():
            assert config[argument] == value


def test_losses_are_those_of_the_columns_and_take_logits():
    classes = {
        "xe": keras.losses.SparseCategoricalCrossentropy,
        "fl53": keras_selcal.FocalLoss,
        "inv_focal": keras_selcal.InverseFocalLoss,
        "dual_focal": DualFocalVariant,
        "kde_xe": keras_selcal.KDECrossentropy,
        "aurc": keras_selcal.AURCLoss,
        "au": keras_selcal.AULoss,
    }
    assert list(classes) == list(settings.LOSSES) == list(losses.NAMES)
    assert list(settings.LOSSES.values()) == [
        "XE", "FL-53", "Inv. FL", "Dual", "KDE-XE", "AURC", "AU",
    ]  # fmt: skip
    for name, cls in classes.items():
        built = losses.build(name)
        assert type(built) is cls
        assert built.get_config()["from_logits"] is True
    assert losses.build("fl53").gamma == "53"
    with pytest.raises(ValueError, match="'xe', 'fl53', 'inv_focal'"):
        losses.build("mse")


def test_outside_the_paper_losses_have_the_librarys_defaults():
    for name in ("inv_focal", "kde_xe", "aurc", "au"):
        found = settings.settings("cifar10", "resnet20", name).loss
        config = losses.build(name).get_config()
        assert found == {argument: config[argument] for argument in found}
    dual = settings.settings("cifar10", "resnet20", "dual_focal").loss
    assert dual["variant"] == "intended"
    assert settings.settings("cifar10", "resnet20", "xe_dropout").dropout == 0.5
    smoothed = losses.build("xe_smoothed")
    assert (smoothed.gamma, smoothed.get_config()["label_smoothing"]) == (0, 0.1)


OWN = """
import keras

class Mine(keras.losses.Loss):
    def __init__(self, power=1, name="mine", **kwargs):
        super().__init__(name=name, **kwargs)
        self.power = power

    def call(self, y_true, y_pred):
        return plain(y_true, y_pred) ** self.power

class OnLogits(keras.losses.SparseCategoricalCrossentropy):
    pass

def plain(y_true, y_pred):
    xe = keras.losses.sparse_categorical_crossentropy
    return xe(y_true, y_pred, from_logits=True)

number = 3
"""


def test_losses_of_ones_own_are_named_by_module(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    task = Task("digits", "cnn", "own_losses:Mine", set=("loss.power=2",))
    assert task.settings.loss == {"power": 2}
    assert task.name == "digits-cnn-own_losses_Mine-seed0-power2"
    assert losses.build(task.loss, task.settings.loss).power == 2
    assert losses.build("own_losses:OnLogits").get_config()["from_logits"] is True
    assert losses.build("own_losses:plain").__name__ == "plain"
    assert losses.title("own_losses:plain") == losses.words("own_losses:plain")
    for name, reason in (
        ("own_losses:Nothing", "has no attribute 'Nothing'"),
        ("own_losses:number", "a class or a function"),
        ("no_losses:Mine", "No module named 'no_losses'"),
    ):
        with pytest.raises(ValueError, match=rf"^`loss` must be module:Name.*{reason}"):
            losses.build(name)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("loss.smoothing", "0.3", 0.3),
        ("loss.quantile", "none", None),
        ("loss.threshold", "1", 1.0),
        ("loss.num_bins", "100", 100),
        ("loss.csf", "margin", "margin"),
        ("batch_size", "64", 64),
        ("learning_rate", "1e-3", 1e-3),
        ("milestones", "10,20", (10, 20)),
        ("image_size", "none", None),
        ("image_size", "64", 64),
        ("schedule", "cosine", "cosine"),
        ("augmentation", "none", "none"),
        ("validate_every", "5", 5),
        ("weight_gradient_rise", "5,10", (5, 10)),
    ],
)
def test_an_override_changes_one_setting_and_keeps_its_type(key, value, expected):
    before = settings.settings("cifar10", "resnet50", "au")
    after = dataclasses.asdict(override(before, key, value))
    name, _, argument = key.partition(".")
    found = after["loss"].pop(argument) if argument else after.pop(name)
    assert found == expected
    assert type(found) is type(expected)
    unchanged = dataclasses.asdict(before)
    unchanged["loss"].pop(argument) if argument else unchanged.pop(name)
    assert after == unchanged


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("loss.smoothing", "much", "`loss.smoothing` must be a number"),
        ("loss.smoothing", "nan", "`loss.smoothing` must be a number"),
        ("loss.num_bins", "1.5", "`loss.num_bins` must be an integer"),
        ("loss.threshold", "much", "a number or none"),
        ("loss.gamma", "1", "'loss.csf', 'loss.quantile'"),
        ("loss", "au", "'batch_size', 'epochs'"),
        ("source", "x", "'batch_size', 'epochs'"),
        ("rate", "1", "learning_rate"),
        ("epochs", "-1", "`epochs` must be an integer of at least 0"),
        ("epochs", "many", "`epochs` must be an integer"),
        ("schedule", "linear", "'steps', 'cosine'"),
        ("milestones", "10;20", "numbers separated by commas"),
        ("augmentation", "mixup", "'crop_flip', 'flip', 'none'"),
        ("validate_every", "0", "`validate_every` must be an integer of at least 1"),
        ("weight_gradient_rise", "5", "two epochs in rising order"),
        ("weight_gradient_rise", "9,5", "two epochs in rising order"),
    ],
)
def test_bad_overrides_name_what_is_allowed(key, value, message):
    with pytest.raises(ValueError, match=message):
        override(settings.settings("cifar10", "resnet50", "au"), key, value)


def test_only_the_au_loss_has_a_rising_weight_gradient():
    with pytest.raises(ValueError, match="Only the AU loss has"):
        override(
            settings.settings("cifar10", "resnet50", "xe"),
            "weight_gradient_rise",
            "5,9",
        )


def test_a_bandwidth_is_a_number_or_a_word():
    kde = settings.settings("digits", "cnn", "kde_xe")
    assert override(kde, "loss.bandwidth", "0.01").loss["bandwidth"] == 0.01
    assert override(kde, "loss.bandwidth", "auto").loss["bandwidth"] == "auto"


def test_milestones_and_warmup_scale_with_the_epochs():
    short = with_epochs(settings.settings("cifar100", "resnet50", "xe"), 25)
    assert (short.epochs, short.milestones, short.warmup_epochs) == (25, (6, 12, 16), 4)
    one = with_epochs(settings.settings("cifar10", "resnet50", "xe"), 1)
    assert one.warmup_epochs == 0
    with pytest.raises(ValueError, match="epochs"):
        with_epochs(short, -1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cifar", "resnet50", "xe"), "tiny-imagenet, fashion-mnist, digits"),
        (("npz", "mlp", "xe"), "npz:PATH"),
        (("folder", "resnet50", "xe"), "folder:PATH"),
        (("cifar10", "resnet", "xe"), "'resnet50', 'resnet110'"),
        (("cifar10", "resnet50", "ce"), "'xe', 'fl53'"),
    ],
)
def test_unknown_names_list_the_known_ones(arguments, message):
    with pytest.raises(ValueError, match=message):
        settings.settings(*arguments)
    with pytest.raises(ValueError, match="'msp', 'margin', 'neg_entropy'"):
        settings.settings("cifar10", "resnet50", "au", csf="max")


def test_rows_show_the_papers_choices():
    rows = settings.rows()
    assert len({tuple(row) for row in rows}) == 1
    assert [(row["data set"], row["model"]) for row in rows][: len(COLUMNS)] == COLUMNS
    shown = {(row["data set"], row["model"]): row for row in rows}
    row = shown["cifar100", "preresnet56"]
    values = [row[f"{letter} AU"] for letter in "κν"]
    assert [row["γ Dual"], row["γ Inv. FL"], *values] == ["4.5", "1", "0.92", "0.01"]
    assert shown["digits", "others"]["epochs"] == "60"
