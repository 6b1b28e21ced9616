"""The paper's figures are drawn, with the right numbers."""

import csv
import dataclasses

import keras
import numpy as np
import pytest
import tiny_run
from matplotlib.figure import Figure

from keras_selcal import functional
from recipes import models, settings
from recipes.cli import main
from recipes.evaluation import evaluate
from recipes.paper import (
    figures,
    loss_figures,
    published,
    run_figures,
    search_figures,
)
from recipes.runs import Predictions, Run
from recipes.tasks import RunError

pytestmark = pytest.mark.backend_free

P = np.arange(1, 256) / 256
K, N = 10, 200


def made(folder, loss, seed, **arguments):
    """Makes a finished run of the paper's PreResNet56, without training."""
    chosen = settings.settings("cifar10", "preresnet56", loss)
    chosen = dataclasses.replace(chosen, loss={**chosen.loss, **arguments})
    rng = np.random.default_rng(len(list(folder.iterdir())))

    def predict():
        labels = rng.integers(0, K, N)
        logits = 2 * np.eye(K)[labels] + rng.normal(size=(N, K))
        return Predictions(logits, labels)

    name = "-".join([loss, *map(str, arguments.values()), str(seed)])
    config = {"dataset": "cifar10", "model": "preresnet56", "loss": loss, "seed": seed}
    return tiny_run.made(folder / name, chosen, predict, **config)


def build(name, num_classes, input_shape):
    """Replaces `models.build` by a network that compiles quickly."""
    layers = keras.layers
    return keras.Sequential(
        [layers.Input(input_shape), layers.Flatten(), layers.Dense(num_classes)]
    )


RESULTS = ("seed", "val_loss", "val_nll", "val_accuracy", "val_ece", "epoch")


def write_search(folder, fields, rows):
    folder.mkdir()
    with open(folder / "search.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*fields, *RESULTS, "run", "state"])
        for values, nll in rows:
            found = ("", "", "", "", "") if nll is None else (9, nll, 0.5, 0.1, 3)
            writer.writerow([*values, 0, *found, "au-0", "finished"])
    return folder / "search.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def pictures(folder):
    """Runs the command once, and returns its pictures."""
    runs = folder / "runs"
    runs.mkdir()
    for seed in (1, 0):
        made(runs, "xe", seed)
        made(runs, "au", seed)
    made(runs, "au", 0, csf="margin")
    one = write_search(
        folder / "one", ["gamma"], [((g,), (g - 2) ** 2 + 1) for g in range(4)]
    )
    two = write_search(
        folder / "two",
        ["smoothing", "quantile", "csf"],
        [
            ((nu, kappa, csf), None if nu == kappa else nu + kappa)
            for nu in (0.1, 0.5)
            for kappa in (0.5, 1)
            for csf in ("msp", "margin")
        ],
    )
    seen = {}
    draw = figures.pictures

    def recording(*arguments):
        for picture in draw(*arguments):
            seen[picture.name] = picture
            yield picture

    command = ["figures", str(runs), "-o", str(folder / "out")]
    command += ["--search", str(one), "--search", str(two), "--epochs", "3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "pictures", recording)
        patch.setattr(models, "build", build)
        assert main(command) == 0
    return seen


def lines(picture, panel):
    ax = picture.figure.axes[panel]
    return {line.get_label(): line for line in ax.get_lines()}


def test_every_figure_of_the_paper_is_drawn_and_shown(pictures, folder):
    assert list(pictures) == [
        "weightandloss",
        "rc_ece",
        "rc_ece-cifar-10-preresnet56",
        "influenceCSF",
        "gradientcomparison",
        "randomdataDFL",
        "gradients_over_epochs",
        "gammaselection-one",
        "smoothparameter",
        "nuselection-two",
        "nuselection_gradient",
    ]
    page = (folder / "out" / "figures.md").read_text(encoding="utf-8")
    for name, picture in pictures.items():
        assert f"![{picture.title}]({name}.png)\n\n{picture.caption}\n" in page
        assert f"fig:{name.partition('-')[0]}" in picture.caption
        assert (folder / "out" / f"{name}.png").stat().st_size > 4000
    _, _, notes = page.partition("## Notes\n\n")
    place = "fig:rc_ece of ours: CIFAR-10, PreResNet56, AU"
    assert notes == f"- {place}: runs with csf margin are left out.\n"


def test_figures_are_also_written_as_svg_and_pdf(tmp_path, monkeypatch, capsys):
    real = loss_figures.gradient_comparison()
    empty = real._replace(figure=Figure())
    monkeypatch.setattr(figures, "pictures", lambda *_: iter([real, empty]))
    monkeypatch.setattr(figures.training_figures, "example", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert main(("figures", "--format", "svg", "--format", "pdf")) == 0
    assert capsys.readouterr().out.endswith("figures.md: shows 2 pictures\n")
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for kind, start in starts.items():
        # The second picture gets another name.
        for name in ("gradientcomparison", "gradientcomparison+"):
            found = (tmp_path / "figures" / f"{name}.{kind}").read_bytes()
            assert found.startswith(start)


def test_weights_and_losses_follow_their_formulas(pictures):
    weights = {
        "XE": np.ones(255),
        "FL, γ = 2": (1 - P) ** 2,
        "Inv. FL, γ = 2": (1 + P) ** 2,
        "AURC": -np.log1p(-P),
    }
    weight, loss = (lines(pictures["weightandloss"], panel) for panel in (0, 1))
    assert set(weight) == set(loss) == {*weights, "AU"}
    for label, expected in weights.items():
        expected = expected / expected.mean()
        # AURC weights by rank among 1024 samples with p from 1/1000 on.
        near = {"rtol": 0.03, "atol": 0.005} if label == "AURC" else {"rtol": 1e-4}
        inside = slice(0, 250)
        drawn = weight[label].get_ydata()
        assert drawn.mean() == pytest.approx(1)
        np.testing.assert_allclose(drawn[inside], expected[inside], **near)
        drawn = loss[label].get_ydata()
        np.testing.assert_allclose(
            drawn[inside], (-np.log(P) * expected)[inside], **near
        )


def test_gradients_of_focal_and_inverse_focal_loss_follow_their_formulas(pictures):
    focal, inverse = (lines(pictures["gradientcomparison"], panel) for panel in (0, 1))
    for gamma in (1, 2, 3, 5):
        label = f"γ = {gamma}"
        expected = gamma * (1 - P) ** (gamma - 1) * np.log(P) - (1 - P) ** gamma / P
        np.testing.assert_allclose(
            focal[label].get_ydata(), expected, rtol=2e-3, atol=2e-4
        )
        expected = -gamma * (1 + P) ** (gamma - 1) * np.log(P) - (1 + P) ** gamma / P
        drawn = inverse[label].get_ydata()
        np.testing.assert_allclose(drawn, expected, rtol=2e-3, atol=2e-2)
        assert (drawn.max() > 0) == (gamma > 3.591)


def test_dual_focal_weights_and_gradients_follow_each_variant(pictures):
    weight, gradient = (lines(pictures["randomdataDFL"], panel) for panel in (0, 1))
    first, second = 0.7 * (1 - P), 0.3 * (1 - P)
    rivals = {
        '"intended"': first,
        '"discarded"': np.where(first < P, first, 0),
        '"released"': np.where(first < P, first, np.where(second < P, second, 0)),
    }
    for label, rival in rivals.items():
        expected = 1 - P + rival
        np.testing.assert_allclose(
            weight[label].get_ydata(), expected**2, rtol=1e-4, atol=1e-6
        )
        slope = -expected / (1 - P)
        expected = -2 * expected * slope * np.log(P) - expected**2 / P
        np.testing.assert_allclose(
            gradient[label].get_ydata(), expected, rtol=2e-3, atol=2e-3
        )


def bars(ax, label):
    (found,) = (c for c in ax.containers if c.get_label() == label)
    return np.array([(bar.get_x(), bar.get_y(), bar.get_height()) for bar in found])


def test_reliability_diagrams_draw_the_papers_bars(pictures):
    axes = pictures["rc_ece"].figure.axes
    diagrams = published.diagrams()
    assert len(axes) == len(diagrams) == 6
    for ax, diagram in zip(axes, diagrams.values(), strict=True):
        assert ax.get_title().endswith(f"ECE = {diagram.ece / 100:.3g}")
        drawn = bars(ax, "accuracy in the bin")
        gaps = sum(
            bars(ax, f"gap to the mean confidence: {side}confident")[:, 2]
            for side in ("over", "under")
        )
        full = [bar for bar in diagram.bars if bar.accuracy != bar.confidence]
        assert 8 <= len(full) == len(drawn)
        for bar, (x, _, height), gap in zip(full, drawn, gaps, strict=True):
            assert (x, height) == pytest.approx((bar.lower, bar.accuracy))
            assert height + gap == pytest.approx(bar.confidence)


def test_runs_are_drawn_with_their_ece_by_loss_and_by_score(pictures, folder):
    # XE, and AU with the paper's score, with the first seed.
    axes = pictures["rc_ece-cifar-10-preresnet56"].figure.axes
    for ax, name in zip(axes, ("xe-0", "au-0"), strict=True):
        logits, labels = Run(folder / "runs" / name).predictions("test")
        ece = functional.ece(labels, logits, 10, from_logits=True)
        assert ax.get_title().endswith(f"ECE = {ece:.3g}")
    (ax,) = pictures["influenceCSF"].figure.axes
    eces = {
        name: [
            evaluate(Run(folder / "runs" / run), "test", ("ece",))["ece"]
            for run in members
        ]
        for name, members in {
            "msp": ("au-0", "au-1"),
            "margin": ("au-margin-0",),
        }.items()
    }
    for name, values in eces.items():
        ((_, _, height),) = bars(ax, name)
        assert height == pytest.approx(np.mean(values))
    dots = [dot for line in ax.get_lines() for dot in line.get_ydata()]
    assert sorted(dots) == pytest.approx(sorted(eces["msp"] + eces["margin"]))
    (paper,) = (c for c in ax.collections if c.get_label() == "the paper")
    key = ("combined_acc_ece", "cifar10", "preresnet56", "none", "ece", "au")
    assert paper.get_segments()[0][0, 1] == published.figures()[key].value


def test_gradients_of_training_samples_are_shown_at_three_epochs_at_most(pictures):
    axes = pictures["gradients_over_epochs"].figure.axes
    assert [ax.get_title() for ax in axes] == ["epoch 1", "epoch 3"]
    seen = []
    for ax in axes:
        points = {line.get_label(): line for line in ax.get_lines()}
        p, gradient = points["XE"].get_data()
        inside = (p > 0.05) & (p < 0.99)
        assert len(p) == 640
        np.testing.assert_allclose(gradient[inside], -1 / p[inside], rtol=0.02)
        seen.append(p)
    assert seen[1].mean() > seen[0].mean() + 0.05


def test_the_runs_of_searches_are_drawn(pictures):
    curve = lines(pictures["gammaselection-one"], 0)
    assert curve["trials"].get_ydata().tolist() == [5, 2, 1, 2]
    assert "lowest: γ = 2" in curve
    # NLL, accuracy and ECE of each score, beside their colour bars.
    picture = pictures["nuselection-two"]
    maps = [ax for ax in picture.figure.axes if ax.get_legend() is not None]
    assert len(maps) == 6
    (mesh,) = maps[0].collections
    np.testing.assert_allclose(
        np.ma.filled(mesh.get_array(), np.nan).reshape(2, 2),
        [[0.6, np.nan], [1.1, 1.5]],
    )
    assert "8 runs, 2 of them without a result" in picture.caption


def test_what_cannot_be_drawn_leaves_a_note_or_an_error(tmp_path, capsys):
    notes = []
    assert list(run_figures.reliability_of_runs([], notes)) == []
    assert list(run_figures.influence_of_csf([], notes)) == []
    search = write_search(tmp_path / "csf", ["csf"], [(("msp",), 1), (("margin",), 2)])
    searches = [search_figures.read_results(search)]
    assert list(search_figures.of_searches(searches, "gammaselection", notes)) == []
    assert list(search_figures.of_searches(searches, "nuselection", notes)) == []
    assert [note.partition(":")[0] for note in notes] == [
        "fig",
        "fig",
        "csf",
        "fig",
        "fig",
    ]
    (tmp_path / "bad.csv").write_text("gamma,run\n1,a\n")
    with pytest.raises(RunError, match="is not the file of a search"):
        search_figures.read_results(tmp_path / "bad.csv")
    out = str(tmp_path / "out")
    for name in ("bad.csv", "nowhere.csv"):
        given = str(tmp_path / name)
        assert main(("figures", "-o", out, "--search", given)) == 1
        assert name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
