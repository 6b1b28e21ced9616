"""The paper's tables from runs: their numbers, cells and notes."""

import csv
import dataclasses
import re

import numpy as np
import pytest
import tiny_run

from keras_selcal import MetaAcc, MetaMis, functional
from recipes import settings
from recipes.cli import main
from recipes.paper import published
from recipes.paper.posthoc import ACCURACY, FIT_ON, posthoc_values
from recipes.paper.tables import TABLES, latex, markdown, measured, table_csv
from recipes.runs import Predictions

pytestmark = pytest.mark.backend_free

K, N = 10, 2000


def predictions(rng, scale=1.0):
    """Returns predictions that are overconfident at scale 1."""
    labels = rng.integers(0, K, N)
    logits = 2.2 * np.eye(K)[labels] + rng.normal(size=(N, K))
    return Predictions((5 * scale * logits).astype("float32"), labels)


def made(folder, rng, loss="xe", scale=1.0, seed=0, **config):
    config = {"dataset": "cifar10", "model": "resnet50", **config}
    chosen = settings.settings(config["dataset"], config["model"], loss)
    if "epochs" in config:
        chosen = settings.with_epochs(chosen, config.pop("epochs"))
    arguments = {**chosen.loss, **config.pop("arguments", {})}
    chosen = dataclasses.replace(chosen, loss=arguments)
    name = f"{len(list(folder.iterdir()))}-{loss}-{seed}"
    config = {"loss": loss, "seed": seed, "versions": {"keras": f"3.{seed}"}, **config}
    return tiny_run.made(
        folder / name, chosen, lambda: predictions(rng, scale), **config
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


def table_rows(text):
    """Returns the rows of Markdown tables by their titles, in lists."""
    rows = {}
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| |"):
            title, *cells = (cell.strip() for cell in line[2:-1].split("|"))
            rows.setdefault(title, []).append(cells)
    return rows


def test_without_runs_the_tables_are_the_papers():
    found, notes = measured([])
    assert notes == []
    rows = list(csv.DictReader(table_csv(found).splitlines()))
    figures = {
        tuple(row[name] for name in published.Key._fields): (
            float(row["paper"]),
            row["paper_bold"] == "1",
        )
        for row in rows
    }
    assert figures == published.figures()
    assert {row["ours"] for row in rows} == {""}
    text = markdown(found)
    cells = table_rows(text)
    assert len(cells["ResNet50"]) == 2 * (2 + 1 + 1)
    assert cells["ResNet50"][1][3] == "/ **1.27**"
    assert cells["+TS"][-1][0] == "/ **1.12** [85.4] (1.0)"
    assert "there are no runs of ours yet" in text
    # Every row of the LaTeX tables has a title and seven cells.
    lines = [line for line in latex(found).splitlines() if " & " in line]
    assert len(lines) == 3 + 20 + 20 + 40
    assert {line.count("&") for line in lines} == {7}
    assert r"/ \textbf{0.44} [78.0]" in latex(found)


def test_posthoc_values_follow_from_the_calibrators(rng):
    val, test = predictions(rng), predictions(rng)
    values, errors = posthoc_values(val, test, accuracy=0.9)
    assert errors == []
    grid = np.arange(1, 101) / 10
    eces = [functional.ece(val.labels, val.logits / t, from_logits=True) for t in grid]
    temperature = grid[np.argmin(eces)]
    assert values["ts", "temperature"] == pytest.approx(temperature)
    assert temperature > 1.5
    accuracy = 100 * np.mean(test.logits.argmax(-1) == test.labels)
    assert values["none", "accuracy"] == values["ts", "accuracy"] == accuracy
    for posthoc, logits in (("none", test.logits), ("ts", test.logits / temperature)):
        exact = {"from_logits": True}
        cwece = 100 * functional.cwece(test.labels, logits, **exact)
        ece = 100 * functional.ece(test.labels, logits, binning="adaptive", **exact)
        assert values[posthoc, "cwece"] == pytest.approx(cwece, rel=1e-4)
        assert values[posthoc, "adaptive_ece"] == pytest.approx(ece, rel=1e-4)
    assert values["ts", "adaptive_ece"] < values["none", "adaptive_ece"]
    # What Meta-Cal rejects is uniform, and a tenth of it right.
    meta = MetaMis(0.05).fit(*val)
    p = np.asarray(meta(test.logits))
    rejected = p.max(-1) < 0.1 + 1e-6
    assert 0.02 < rejected.mean() < 0.5
    right = np.where(rejected, 0.1, test.logits.argmax(-1) == test.labels)
    assert values["metamis", "accuracy"] == pytest.approx(100 * right.mean())
    ece = 100 * functional.ece(test.labels, p, binning="adaptive")
    assert values["metamis", "adaptive_ece"] == pytest.approx(ece, rel=1e-3)
    assert values["metaacc", "accuracy"] < accuracy


def test_a_target_of_meta_acc_below_the_accuracy_is_raised(rng):
    val, test = predictions(rng, 0.1), predictions(rng, 0.1)
    accuracy = np.mean(val.logits.argmax(-1) == val.labels)
    target = np.floor(100 * accuracy) / 100 - 0.05
    with pytest.raises(ValueError, match="accuracy"):
        MetaAcc(target).fit(*val)
    values, (note,) = posthoc_values(val, test, accuracy=target)
    words = f"+MetaAcc has its target accuracy raised from {target:g} to "
    assert note.startswith(words)
    raised = float(note.removeprefix(words))
    # The first of the steps of 0.005 that can be fitted.
    steps = (raised - target) / 0.005
    assert steps == pytest.approx(round(steps), abs=1e-6)
    assert steps >= 1
    with pytest.raises(ValueError, match="accuracy"):
        MetaAcc(raised - 0.005).fit(*val)
    expected = MetaAcc(raised).fit(*val).evaluate(test.logits, test.labels)
    found = values["metaacc", "accuracy"] / 100
    assert found == pytest.approx(expected["uniform_accuracy"], abs=1e-3)


def test_temperature_and_meta_cal_are_fitted_where_the_option_says(folder, rng):
    run = made(folder, rng)
    run.write_predictions("train", predictions(rng, 0.5))
    test, target = run.predictions("test"), ACCURACY["cifar10"]
    found = {}
    for fit_on, splits in FIT_ON.items():
        scaling, meta = (run.predictions(split) for split in splits)
        expected, _ = posthoc_values(scaling, test, target, meta_fitted=meta)
        groups, _ = measured([run], fit_on)
        (values,) = next(one.values["xe"] for one in groups if one.values["xe"])
        assert values == expected
        found[fit_on] = values["ts", "temperature"], values["metamis", "accuracy"]
    assert found["paper"] == (found["val"][0], found["train"][1])
    assert found["val"][0] != found["train"][0]
    assert found["val"][1] != found["train"][1]


def test_a_temperature_at_the_end_of_its_grid_gets_a_note(rng):
    val, test = predictions(rng), predictions(rng)
    low = [Predictions(0.01 * one.logits, one.labels) for one in (val, test)]
    values, (note,) = posthoc_values(*low, methods=["ts"])
    assert values["ts", "temperature"] == pytest.approx(0.1)
    assert note.startswith("+TS has T = 0.1, at the end of its grid")
    assert posthoc_values(val, test, methods=["ts"])[1] == []


def test_cells_have_our_mean_beside_the_papers_number(folder, rng):
    runs = [made(folder, rng, seed=seed) for seed in range(2)]
    runs += [made(folder, rng, "au", scale=0.5), made(folder, rng, model="resnet20")]
    found, notes = measured(runs)
    assert all("+MetaAcc" in note for note in notes)
    text = markdown(found, notes)
    ours = [
        np.mean(
            [
                100 * functional.ece(p.labels, p.logits, from_logits=True)
                for p in (run.predictions("test") for run in group)
            ]
        )
        for group in (runs[:2], runs[2:3])
    ]
    assert ours[1] < ours[0]
    cells = table_rows(text)["ResNet50"][1]
    values = [
        100 * functional.ece(p.labels, p.logits, from_logits=True)
        for p in (run.predictions("test") for run in runs[:2])
    ]
    half = 12.7062 * abs(values[0] - values[1]) / 2  # t of one degree of freedom
    assert cells[0] == f"{ours[0]:.2f} ±{half:.2f} / 3.00"
    assert cells[1] == "/ 3.98"
    # One seed of AU, and two of XE, tell nothing apart.
    assert cells[-1] == f"{ours[1]:.2f} / 1.69"
    # Not in the paper, and the only loss of its row.
    (cell, *empty) = table_rows(text)["resnet20 (not in the paper)"][1]
    assert re.fullmatch(r"[\d.]+ /", cell)
    assert set(empty) == {""}
    assert "ours are means over 1 to 2 seeds" in text
    assert re.fullmatch(
        r"\d.\d\d \[\d\d.\d\] \(\d.\d\) /", table_rows(text)["+TS"][-7][0]
    )
    rows = csv.DictReader(table_csv(found).splitlines())
    (row,) = (
        row
        for row in rows
        if row["ours"]
        and (row["metric"], row["loss"]) == ("ece", "xe")
        and row["model"] == "resnet50"
    )
    assert float(row["ours"]) == pytest.approx(ours[0], abs=1e-4)
    assert (row["seeds"], row["best"], row["paper"]) == ("2", "0", "3.00")
    assert float(row["std"]) > 0


def test_titles_and_notes_tell_what_differs_from_the_paper(folder, rng):
    runs = [
        made(folder, rng, "au", arguments={"smoothing": 0.3}),
        made(folder, rng, subset=500, epochs=20),
        made(folder, rng, model="resnet110", loss="aurc"),
        made(folder, rng, model="resnet110", loss="aurc", arguments={"csf": "margin"}),
        made(folder, rng, model="wrn28_10", loss="au", arguments={"quantile": 0.5}),
        made(folder, rng, model="wrn28_10", loss="au", arguments={"csf": "margin"}),
        made(folder, rng, model="resnet110_basic"),
        made(folder, rng, dataset="tiny-imagenet", model="vit_small"),
        made(folder, rng, dataset="digits", model="cnn", label_noise=0.2),
        made(folder, rng, dataset="folder:a/pets_1|2", model="cnn"),
    ]
    found, notes = measured(runs)
    notes = [note for note in notes if "+MetaAcc" not in note]
    assert notes == [
        "CIFAR-10, ResNet50, AU: trained with smoothing 0.3.",
        "CIFAR-10, ResNet110, AURC: runs with csf margin are left out.",
        "CIFAR-10, WRN, AU: left empty, because no run has the paper's arguments: "
        "quantile 0.5; csf margin.",
    ]
    rows = table_rows(markdown(found))
    assert "ResNet50 (subset 500, epochs 20)" in rows
    assert rows["WRN"][0][-1] == "/ 95.32"
    # Not the paper's network: it has no number of the paper beside its own.
    assert rows["resnet110_basic (not in the paper)"][0][1] == ""
    assert "ViT-Small (from scratch)" in rows
    assert "cnn (not in the paper, 20 % of the labels are wrong)" in rows
    assert "**pets_1\\|2, ECE ↓**" in markdown(found)
    assert r"pets\_1|2, ECE $\downarrow$" in latex(found)


def test_calibrators_that_refuse_leave_a_note(folder, rng):
    run = made(folder, rng, dataset="cifar100", model="resnet50")
    hopeless = Predictions(np.zeros((20, K), "float32"), np.arange(20) % K)
    run.write_predictions("val", hopeless)
    found, notes = measured([run])
    assert notes == [
        "+MetaMis cannot be fitted on these 20 images, because too few of them are "
        f"classified correctly: {run.name}.",
        "+MetaAcc cannot be fitted on these 20 images, because rejecting some reaches "
        f"no accuracy from 0.87 to 1: {run.name}.",
    ]
    cells = table_rows(markdown(found, notes))
    assert cells["+MetaMis"][4][0] == "/ 6.72 [63.7]"
    # Tables without Meta-Cal have no notes on it.
    assert measured([run], tables=TABLES[:2])[1] == []


def test_the_command_writes_three_files_and_leaves_out_unfinished_runs(
    folder, rng, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(("tables",)) == 0
    assert capsys.readouterr().out.endswith("tables.tex: 0 runs\n")
    made(folder, rng)
    (folder / "begun").mkdir()
    (folder / "begun" / "config.json").write_text('{"loss": "xe"}')
    assert main(("tables", str(folder), "-o", "here")) == 0
    out = capsys.readouterr().out
    assert f"left out: cannot read {folder}/begun/config.json" in out
    assert out.endswith("tables.tex: 1 run\n")
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {"tables.md", "tables.csv", "tables.tex"}
    assert "ours are means over 1 seed." in (tmp_path / "here/tables.md").read_text()
    assert main(("tables", "nowhere")) == 1
    assert "there is no run nowhere" in capsys.readouterr().err
