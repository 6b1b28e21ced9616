"""Unknown inputs in a report: figures, intervals, comparison, page, command line."""

import keras
import numpy as np
import pytest
import reference
from command_line import refused, run
from metric_data import known_and_unknown
from report_page import page_of

from keras_selcal import CalibrationReport
from keras_selcal import functional as F  # noqa: N812
from keras_selcal.csf import ConfidenceScore
from keras_selcal.report.unknown import ROWS

pytestmark = pytest.mark.backend_free


def test_figures_are_those_of_the_functions(rng):
    y, known, unknown = known_and_unknown(rng)
    for options in ({"csf": "msp"}, {"csf": "energy"}, {"csf": "max_logit_pnorm"}):
        options["from_logits"] = True
        report = CalibrationReport(
            y, known, unknown=unknown, unknown_share=0.1, bootstrap=0, **options
        )
        expected = {
            "ood_auroc": F.ood_auroc(known, unknown, **options),
            "ood_aupr": F.ood_aupr(known, unknown, **options),
            "fpr_at_tpr_0.95": F.fpr_at_tpr(known, unknown, **options),
            "scod_aurc": F.scod_aurc(y, known, unknown, unknown_share=0.1, **options),
        }
        assert list(expected) == list(ROWS)
        for name, value in expected.items():
            assert report[name].value == pytest.approx(value)
            assert name in str(report)
    assert report.to_dict()["num_unknown"] == 150


def test_replicates_are_the_metrics_of_resamples(rng):
    y, known, unknown = known_and_unknown(rng, n=60, m=25)
    weight = rng.integers(1, 4, 60)
    p, q = reference.softmax(known), reference.softmax(unknown)
    inputs = CalibrationReport(
        y, p, unknown=q, unknown_share=0.3, sample_weight=weight, bootstrap=0
    ).unknown
    drawn = rng.multinomial(60, np.full(60, 1 / 60), 3)
    strange = rng.multinomial(25, np.full(25, 1 / 25), 3)
    found = inputs.metrics(drawn, strange)
    for i in range(3):
        rows, others = (np.repeat(np.arange(len(x[i])), x[i]) for x in (drawn, strange))
        copies = np.repeat(rows, weight[rows])
        s, u = p[copies].max(axis=-1), q[others].max(axis=-1)
        assert found["ood_auroc"][i] == pytest.approx(F.ood_auroc(s, u))
        assert found["ood_aupr"][i] == pytest.approx(F.ood_aupr(s, u))
        assert found["fpr_at_tpr_0.95"][i] == pytest.approx(F.fpr_at_tpr(s, u))
        expected = F.scod_aurc(
            y[rows], p[rows], q[others], unknown_share=0.3, sample_weight=weight[rows]
        )
        assert found["scod_aurc"][i] == pytest.approx(expected)


def test_models_are_compared_on_the_same_resamples(rng):
    y, known, unknown = known_and_unknown(rng)
    options = {"bootstrap": 60, "from_logits": True}
    one = CalibrationReport(y, known, unknown=unknown, **options)
    # A monotone change of the score changes no ranking, so that nothing differs.
    squared = ConfidenceScore(
        lambda z: 2 * keras.ops.max(z, axis=-1), None, needs="logits"
    )
    options["csf"] = "max_logit"
    two = CalibrationReport(y, known, unknown=unknown, **options)
    three = CalibrationReport(y, known, unknown=unknown, **{**options, "csf": squared})
    assert {three.compare(two).verdict(name) for name in ROWS} == {"equal"}
    difference = one.compare(two)["ood_auroc"]
    assert difference.value == pytest.approx(
        one["ood_auroc"].value - two["ood_auroc"].value
    )
    assert difference.low < difference.value < difference.high
    for other in (None, unknown[1:]):
        with pytest.raises(ValueError, match="`other` must be a report with the same"):
            one.compare(CalibrationReport(y, known, unknown=other, **options))


def test_the_page_says_whether_it_notices_unknown_inputs(rng, tmp_path):
    y, known, unknown = known_and_unknown(rng)
    options = {"from_logits": True, "bootstrap": 50}
    report = CalibrationReport(y, known, unknown=unknown, **options)
    page = page_of(report, tmp_path)
    assert "Inputs it has never seen" in page.text
    assert "150 inputs belong to none of the classes" in page.text
    assert "In part" in page.text
    share = f"{100 * report['fpr_at_tpr_0.95'].value:.1f}\xa0% of the unknown inputs"
    assert f"also answers {share}" in page.text.replace(" % ", "\xa0% ")
    reverse = CalibrationReport(
        y, known, unknown=5 * unknown, name="<b>", unknown_share=0.2, **options
    )
    page = page_of(reverse, tmp_path, others=[report])
    assert "No, rather the reverse" in page.text
    assert "20 % of all inputs" in page.text.replace("\xa0", " ")
    plain = page_of(CalibrationReport(y, known, **options), tmp_path)
    assert "never seen" not in plain.text


def test_one_sigmoid_unit_and_two_columns_are_the_same(rng):
    z, u = rng.normal(size=60), rng.normal(size=30)
    y = (z + rng.normal(size=60) > 0).astype(int)
    one = CalibrationReport(y, z, unknown=u, from_logits=True, bootstrap=0)
    pair = [np.stack([0 * x, x], axis=-1) for x in (z, u)]
    two = CalibrationReport(y, pair[0], unknown=pair[1], from_logits=True, bootstrap=0)
    for name in ROWS:
        assert one[name].value == pytest.approx(two[name].value)


def test_nan_in_a_prediction_gives_no_figures(rng):
    y, known, unknown = known_and_unknown(rng, n=20, m=5)
    known[3] = np.nan
    report = CalibrationReport(
        y, known, unknown=unknown, from_logits=True, bootstrap=10
    )
    assert all(np.isnan(report[name].value) for name in ROWS)
    assert np.isnan(F.scod_aurc(y, known, unknown, from_logits=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unknown": np.full((4, 2), 0.5)}, "`unknown` must be predictions"),
        ({"unknown": np.full((0, 3), 0.5)}, "`unknown` must be"),
        ({"unknown": np.full((4, 3), np.nan)}, "`unknown` must be"),
        (
            {"unknown": np.full((4, 3), 1 / 3), "unknown_share": 1},
            "`unknown_share` must be",
        ),
        ({"unknown_share": 0.5}, "`unknown_share` must be None without `unknown`"),
    ],
)
def test_bad_unknown_inputs_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        CalibrationReport([0, 1], np.full((2, 3), 1 / 3), bootstrap=0, **options)


def test_several_labels_have_no_unknown_inputs():
    p = np.full((2, 3), 0.4)
    with pytest.raises(ValueError, match="`multi_label` must be False"):
        CalibrationReport(np.eye(3)[:2], p, multi_label=True, unknown=p, bootstrap=0)


def test_the_command_line_reads_unknown_inputs(rng, tmp_path, capsys):
    y, known, unknown = known_and_unknown(rng)
    files = {
        name: str(tmp_path / f"{name}.npz") for name in ("test", "strange", "probs")
    }
    np.savez(files["test"], logits=known, labels=y)
    np.savez(files["strange"], logits=unknown)
    np.savez(files["probs"], probs=reference.softmax(unknown.astype("float64")))
    page = tmp_path / "page.html"
    arguments = [files["test"], "--csf", "energy", "-o", str(page), "--unknown"]
    run(*arguments, files["strange"])
    expected = F.ood_auroc(known, unknown, csf="energy", from_logits=True)
    assert f"{expected:.4f}" in capsys.readouterr().out
    assert "never seen" in page.read_text("utf-8")
    refused(capsys, [*arguments, files["probs"]], "must hold logits")
    twice = [f"b={files['test']}", *arguments, files["strange"]]
    refused(capsys, twice, "--unknown is needed once for each of the 2 models")
