"""One of several outputs of a model, in classifiers, calibrators and callbacks."""

import keras
import numpy as np
import pytest
from backends import numpy
from classifier_data import draw
from keras import layers

from keras_selcal import (
    CalibrateAtEnd,
    CalibrationMonitor,
    ConformalClassifier,
    SelectiveClassifier,
    TemperatureScaling,
    VectorScaling,
    functional,
)
from keras_selcal._predictions.models import OneOutput

TARGETS = {SelectiveClassifier: {"coverage": 0.7}, ConformalClassifier: {}}
FORMS = ["dict", "list", "tuple"]


def heads():
    """Returns inputs, logits of three kinds, and the probability of being urgent."""
    inputs = keras.Input((3,))
    kind = layers.Dense(
        3, kernel_initializer=keras.initializers.Identity(3.0), name="kind_head"
    )(inputs)
    urgent = layers.Dense(1, "sigmoid", kernel_initializer="ones", name="urgent_head")
    return inputs, kind, urgent(inputs)


def two_headed(form="dict", turned=False):
    inputs, kind, urgent = heads()
    if form == "dict":
        outputs = {"kind": kind, "urgent": urgent}
        outputs = dict(reversed(outputs.items())) if turned else outputs
    else:
        outputs = [urgent, kind] if turned else [kind, urgent]
        outputs = tuple(outputs) if form == "tuple" else outputs
    return keras.Model(inputs, outputs)


def labels(n=300, seed=0):
    x, kind = draw(n=n, seed=seed)
    urgent = (x.sum(-1) + np.random.default_rng(seed).normal(size=n) > 2).astype(int)
    return x, kind, urgent


def single(head):
    inputs, *outputs = heads()
    return keras.Model(inputs, outputs[head])


NAMES = {"dict": ("kind", "urgent"), "list": ("kind_head", "urgent_head")}
NAMES["tuple"] = NAMES["list"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", TARGETS)
def test_classifiers(kind, form, turned, tmp_path):
    x, *y = labels()
    model = two_headed(form, turned)
    for head in range(2):
        # By another way than the form: weights are shared.
        expected = kind(single(head)).fit(x, y[head], **TARGETS[kind], verbose=0)
        name = NAMES[form][head]
        structure = dict(zip(NAMES[form], y, strict=True))
        given = [(name, y[head]), (name, structure)]
        if form != "dict":
            order = y[::-1] if turned else y
            index = 1 - head if turned else head
            given += [(index, y[head]), (index - 2, tuple(order)), (name, order)]
        for output, label in given:
            classifier = kind(model, output=output)
            # A sigmoid is told from logits wherever it stands.
            assert classifier.from_logits is (head == 0)
            classifier.fit(x, label, **TARGETS[kind], verbose=0)
            assert classifier.threshold == expected.threshold
        other_x, *other = labels(seed=2)
        found = classifier.evaluate(other_x, other[head], verbose=0)
        figures = expected.evaluate(other_x, other[head], verbose=0)
        assert found["accuracy"] == figures["accuracy"]
        assert found["coverage"] == figures["coverage"]
    path = tmp_path / "classifier.keras"
    classifier.save(path)
    loaded = kind.load(path)
    test_x = labels(seed=1)[0]
    for one, two in zip(
        loaded.predict(test_x, verbose=0),
        expected.predict(test_x, verbose=0),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)
    # The file holds the part that is needed: one kernel and one bias.
    assert len(loaded.model.weights) == 2
    whole = keras.saving.load_model(path)(test_x)
    np.testing.assert_array_equal(
        numpy(whole["labels"]), expected.predict(test_x, verbose=0).labels
    )


def test_batches_with_labels_and_weights_of_all_outputs():
    x, kind, urgent = labels()
    w = (np.arange(300) % 3 > 0).astype("float32")
    expected = SelectiveClassifier(single(0))
    expected.fit(x, kind, coverage=0.7, sample_weight=w, verbose=0)
    rows = [slice(i, i + 64) for i in range(0, 300, 64)]
    batches = [
        (
            x[r],
            {"kind": kind[r], "urgent": urgent[r]},
            {"kind": w[r], "urgent": np.ones(len(w[r]))},
        )
        for r in rows
    ]
    found = SelectiveClassifier(two_headed(), output="kind")
    found.fit(batches, coverage=0.7, verbose=0)
    assert found.record == expected.record
    lists = [(x[r], [kind[r], urgent[r]], w[r]) for r in rows]
    found = SelectiveClassifier(two_headed("list"), output=0)
    found.fit(lists, coverage=0.7, verbose=0)
    assert found.record == expected.record
    arrays = {"kind": kind, "urgent": urgent}, {"kind": w, "urgent": w}
    found = SelectiveClassifier(two_headed(), output="kind")
    found.fit(x, arrays[0], sample_weight=arrays[1], coverage=0.7, verbose=0)
    assert found.record == expected.record


def test_strata():
    x, kind, _ = labels()
    strata = np.arange(300) % 2
    found = ConformalClassifier(two_headed(), output="kind")
    found.fit(x, kind, strata=strata, verbose=0)
    expected = ConformalClassifier(single(0)).fit(x, kind, strata=strata, verbose=0)
    np.testing.assert_array_equal(found.threshold, expected.threshold)
    whole = found.as_model()
    sets = numpy(whole([x, strata.astype("int32")])["sets"])
    np.testing.assert_array_equal(sets, expected.predict(x, strata=strata).sets)


@pytest.mark.parametrize("form", FORMS)
def test_calibrators(form, tmp_path):
    x, kind, urgent = labels()
    model = two_headed(form)
    kind_name = NAMES[form][0]
    places = NAMES[form] if form == "dict" else (0, 1)
    whole = dict(zip(NAMES[form], (kind, urgent), strict=True))
    of_kind = TemperatureScaling().fit_model(
        model, x, whole, output=kind_name, verbose=0
    )
    expected = TemperatureScaling().fit_model(single(0), x, kind, verbose=0)
    assert of_kind.temperature == pytest.approx(expected.temperature, rel=1e-6)
    of_urgent = TemperatureScaling().fit_model(
        model, x, urgent, output=places[1], verbose=0
    )
    assert not of_urgent.from_logits
    # One output after the other: each leaves the other as it is.
    once = of_kind.wrap(model, output=kind_name)
    before, after = model(x), once(x)
    np.testing.assert_array_equal(numpy(after[places[1]]), numpy(before[places[1]]))
    z = numpy(before[places[0]])
    np.testing.assert_allclose(numpy(after[places[0]]), of_kind(z), atol=1e-6)
    twice = of_urgent.wrap(once, output=places[1])
    path = tmp_path / "model.keras"
    twice.save(path)
    found = keras.saving.load_model(path)(x)
    np.testing.assert_allclose(numpy(found[places[0]]), of_kind(z), atol=1e-6)
    p = of_urgent(numpy(before[places[1]]))
    np.testing.assert_allclose(numpy(found[places[1]]), p, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_calibrated_output_keeps_its_name(form, tmp_path):
    x, kind, urgent = labels()
    name = NAMES[form][0]
    whole = dict(zip(NAMES[form], (kind, urgent), strict=True))
    model = two_headed(form)
    path = tmp_path / "model.keras"
    for _ in range(2):  # a calibrator behind another one
        bias = VectorScaling().fit_model(model, x, whole, output=name, verbose=0)
        model = bias.wrap(model, output=name)
    model.save(path)
    loaded = keras.saving.load_model(path)
    found = SelectiveClassifier(loaded, output=name)
    found.fit(x, whole, coverage=0.7, verbose=0)
    assert not found.from_logits
    first, second = (
        numpy(each(x)[name if form == "dict" else 0]) for each in (model, loaded)
    )
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match=f"`output` must be one of .*'{name}'"):
        SelectiveClassifier(loaded)


def train(model, x, y, callbacks):
    loss = {
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "urgent": keras.losses.BinaryCrossentropy(),
    }
    model.compile("sgd", loss)
    return model.fit(x, y, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)


def test_callbacks(tmp_path):
    x, kind, urgent = labels()
    y = {"kind": kind, "urgent": urgent[:, None]}
    model = two_headed()
    path = tmp_path / "calibrated.keras"
    monitors = [
        CalibrationMonitor((x, y), ["nll", "ece"], output="kind", prefix="kind_"),
        CalibrationMonitor((x, urgent), ["nll"], output="urgent", prefix="urgent_"),
    ]
    calibrate = CalibrateAtEnd((x, y), path, output="kind", verbose=0)
    history = train(model, x, y, [*monitors, calibrate]).history
    z, p = (numpy(model(x)[name]) for name in ("kind", "urgent"))
    for name, metric, (label, values, logits) in (
        ("kind_nll", functional.nll, (kind, z, True)),
        ("kind_ece", functional.ece, (kind, z, True)),
        ("urgent_nll", functional.nll, (urgent, p, False)),
    ):
        expected = metric(label, values, from_logits=logits)
        assert history[name][-1] == pytest.approx(expected, rel=1e-5)
    # Training is the same without them.
    alone = train(two_headed(), x, y, []).history
    assert alone["loss"] == history["loss"]
    calibrated = keras.saving.load_model(path)(x)
    expected = TemperatureScaling().fit(z, kind)
    np.testing.assert_allclose(numpy(calibrated["kind"]), expected(z), atol=1e-5)
    np.testing.assert_allclose(numpy(calibrated["urgent"]), p, atol=1e-6)
    assert calibrate.after["nll"].value <= calibrate.before["nll"].value


class Subclassed(keras.Model):
    def __init__(self, form):
        super().__init__()
        self.whole = two_headed(form)

    def call(self, x, training=None):
        return self.whole(x, training=training)


@pytest.mark.parametrize("form", ["dict", "list"])
def test_subclassed_models(form):
    x, kind, urgent = labels()
    place = "kind" if form == "dict" else 0
    model = Subclassed(form)
    expected = SelectiveClassifier(single(0)).fit(x, kind, coverage=0.7, verbose=0)
    found = SelectiveClassifier(model, output=place)
    found.fit(x, kind, coverage=0.7, verbose=0)
    assert found.threshold == expected.threshold
    whole = {"kind": kind, "urgent": urgent} if form == "dict" else [kind, urgent]
    found.fit(x, whole, coverage=0.7, verbose=0)
    assert found.threshold == expected.threshold
    with pytest.raises(ValueError, match="`model` must be a functional model"):
        found.as_model()
    with pytest.raises(ValueError, match=r"`output` must be one of .*several outputs"):
        SelectiveClassifier(model).fit(x, kind, coverage=0.7, verbose=0)
    wrong = SelectiveClassifier(model, output="none")
    with pytest.raises(ValueError, match=r"`output` must be one of .*several outputs"):
        wrong.fit(x, kind, coverage=0.7, verbose=0)


def test_a_head_of_a_model_inside_another_one():
    inner = two_headed()
    inputs = keras.Input((3,))
    for wrap in (lambda outputs: outputs, lambda outputs: [*outputs.values()]):
        outputs = wrap(inner(inputs))
        model = keras.Model(inputs, outputs)
        for place, from_logits in zip(
            outputs if isinstance(outputs, dict) else range(2),
            (True, False),
            strict=True,
        ):
            found = SelectiveClassifier(model, output=place)
            assert found.from_logits is from_logits


class TwoLayers(keras.Model):
    def __init__(self):
        super().__init__()
        self.kind, self.urgent = layers.Dense(3), layers.Dense(1, "sigmoid")

    def call(self, x, training=None):
        return {"kind": self.kind(x), "urgent": self.urgent(x)}


def test_a_head_of_a_subclassed_model_inside_another_one():
    # Its last layer need not be the one that computes the output.
    inputs = keras.Input((3,))
    model = keras.Model(inputs, TwoLayers()(inputs))
    assert SelectiveClassifier(model, output="kind").from_logits


def test_a_dict_of_one_output():
    x, kind, _ = labels()
    inputs, logits, _ = heads()
    expected = SelectiveClassifier(single(0)).fit(x, kind, coverage=0.7, verbose=0)
    for outputs in ({"only": logits}, [logits]):
        found = SelectiveClassifier(keras.Model(inputs, outputs))
        found.fit(x, kind, coverage=0.7, verbose=0)
        assert found.threshold == expected.threshold
    for output in (None, 0, -1, "kind_head"):
        assert OneOutput.of(single(0), output).key is None


def begin(model, callback):
    callback.set_model(model)
    callback.on_train_begin()


def use(call, model, **options):
    x, y, _ = labels(30)
    data = (x, y)
    return {
        "selective": lambda: SelectiveClassifier(model, **options),
        "conformal": lambda: ConformalClassifier(model, **options),
        "fit_model": lambda: TemperatureScaling().fit_model(model, x, y, **options),
        "wrap": lambda: TemperatureScaling().fit(x, y).wrap(model, **options),
        "monitor": lambda: begin(model, CalibrationMonitor(data, **options)),
        "at_end": lambda: begin(model, CalibrateAtEnd(data, **options)),
    }[call]()


@pytest.mark.parametrize(
    "call", ["selective", "conformal", "fit_model", "wrap", "monitor", "at_end"]
)
def test_the_error_names_the_outputs(call):
    with pytest.raises(
        ValueError,
        match=r"`output` must be one of 'kind', 'urgent': the model has several.*None",
    ):
        use(call, two_headed())
    with pytest.raises(ValueError, match="`output` must be one of 'kind', 'urgent'"):
        use(call, two_headed(), output="kinds")


@pytest.mark.parametrize("output", [0, 2, "kinds", True, 1.0, ["kind"]])
def test_bad_outputs(output):
    with pytest.raises(ValueError, match="`output` must be"):
        OneOutput.of(two_headed(), output)
    if output != 0:
        with pytest.raises(ValueError, match="`output` must be"):
            OneOutput.of(two_headed("list"), output)


def test_outputs_that_share_a_layer_have_no_names():
    inputs = keras.Input((3,))
    layer = layers.Dense(3, name="shared")
    model = keras.Model(inputs, [layer(inputs), layer(2 * inputs)])
    with pytest.raises(ValueError, match="`output` must be one of 0, 1: "):
        OneOutput.of(model, "shared")
    x = draw(5)[0]
    found = OneOutput.of(model, 1).model(x)
    np.testing.assert_allclose(numpy(found), numpy(model(x)[1]), rtol=1e-6)


@pytest.mark.parametrize("form", ["dict", "list"])
def test_bad_labels(form):
    x, kind, urgent = labels(30)
    classifier = SelectiveClassifier(two_headed(form), output=NAMES[form][0])
    for y, error in (
        ({"other": kind}, "`y` must be a dict with the key 'kind"),
        ([kind, urgent, urgent], "`y` must be given for output 'kind"),
        ({"kind": kind[:9], "kind_head": kind[:9]}, "`x` must be arrays of one length"),
    ):
        with pytest.raises(ValueError, match=error):
            classifier.fit(x, y, coverage=0.7, verbose=0)
    # Without several outputs a list is an array.
    found = SelectiveClassifier(single(0)).fit(
        x, [int(label) for label in kind], coverage=0.7, verbose=0
    )
    assert found.record.n == 30
    found = classifier.fit(x, kind.tolist(), coverage=0.7, verbose=0)
    assert found.record.n == 30
