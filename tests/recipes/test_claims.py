"""The page of the paper's claims."""

import keras
import numpy as np
import pytest
import tiny_run

from recipes import claims, training
from recipes.cli import main
from recipes.finetune import finetune
from recipes.paper.training_figures import gradients_of_runs
from recipes.progress import Progress, console
from recipes.runs import Run

EXACT = (
    *("focal_gradient", "beta", "ece_bound", "selective_fallback"),
    *("over_and_underconfidence", "figure_and_table", "au_ordering", "table_a"),
    "matrix",
)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", EXACT)
def test_the_page_is_what_the_checks_find(name):
    found = claims.CHECKS[name](())
    assert claims.section(name, found) == claims.page_sections()[name]


@pytest.mark.backend_free
def test_the_page_has_every_claim_and_its_verdict():
    sections = claims.page_sections()
    assert list(sections) == list(claims.CHECKS)
    for text in sections.values():
        assert "**Verdict: " in text


@pytest.mark.backend_free
def test_a_verdict_follows_from_the_figures(monkeypatch):
    """With the T of training images, both calibrators would have been fitted there."""
    from recipes.paper import authors

    assert claims.CHECKS["table_a"](()).verdict == "holds under a condition"
    rows = authors.read()
    for row in rows:
        far = row["fitted_on"] != "training images"
        row |= {"temperature": 5.0 if far else 1.0, "metamis": 50.0 if far else 85.0}
    monkeypatch.setattr(authors, "read", lambda: rows)
    assert claims.CHECKS["table_a"](()).verdict == "holds"


@pytest.mark.backend_free
def test_gradients_of_the_released_losses_are_compared():
    table = claims.CHECKS["released"](()).table
    shares = {row[0]: float(row[1]) for row in table.rows}
    assert shares["KDE-XE, public code"] == 1
    assert shares["AU, public code, NegEntropy, ν = 0.05"] == 0.774
    assert shares["AU, this library (w = 0)"] == 1.032


@pytest.mark.backend_free
def test_a_claim_is_printed_with_its_picture(tmp_path, capsys):
    assert main(["claims", "ece_bound", "--out", str(tmp_path)]) == 0
    assert "holds under a condition" in capsys.readouterr().out
    assert (tmp_path / "ece_bound.png").exists()
    assert main(["claims", "nothing"]) == 1
    assert "The claims are focal_gradient, beta" in capsys.readouterr().err


@pytest.mark.backend_free
def test_gradients_are_drawn_of_runs_with_snapshots(tmp_path, monkeypatch):
    monkeypatch.setattr(training.models, "build", tiny_run.build)
    run = Run(tmp_path / "run")
    with Progress(console(quiet=True)) as progress:
        training.train(run, tiny_run.task(epochs=3, snapshots="1,3"), progress)
    assert list(run.snapshots()) == [1, 3]
    (picture,) = gradients_of_runs([run])
    titles = [ax.get_title() for ax in picture.figure.axes]
    assert titles == ["epoch 1", "epoch 3"]


def test_finetune_trains_a_copy():
    x, y = np.eye(2, dtype="float32"), np.array([0, 1])
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    before = model.get_weights()
    tuned = finetune(model, x, y, epochs=2, learning_rate=0.1, verbose=0)
    assert len(tuned.history.history["loss"]) == 2
    for weights, kept, new in zip(
        before, model.get_weights(), tuned.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(weights, kept)
        assert np.abs(new - kept).max() > 0
    loss = keras.losses.SparseCategoricalCrossentropy()
    with pytest.raises(ValueError, match=r"`loss` must be one with from_logits=True"):
        finetune(model, x, y, loss=loss)
