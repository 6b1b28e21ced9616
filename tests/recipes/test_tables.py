"""Tables of text, and the comparison of runs."""

import numpy as np
import pytest
from finished import finish

from recipes.runs import Predictions, Run
from recipes.tables import Bold, Table, best, cell_of, comparisons

pytestmark = pytest.mark.backend_free


def made(folder, loss, seed, accuracy, **settings):
    """Makes a finished run of 100 samples whose accuracy is given, in %."""
    run = Run(folder / f"{loss}-{seed}-{len(list(folder.iterdir()))}")
    labels = np.zeros(100, int)
    logits = np.where(np.arange(100)[:, None] < accuracy, [[1.0, 0.0]], [[0.0, 1.0]])
    model = settings.pop("model", "cnn")
    with run.lock():
        run.claim(
            {
                "dataset": "digits",
                "label_noise": 0.2 if model == "cnn" else None,
                "model": model,
                "loss": loss,
                "seed": seed,
                "settings": {"epochs": 60, **settings},
                "versions": {"keras": str(seed)},
            }
        )
        return finish(run, Predictions(logits, labels))


def test_a_table_is_written_for_markdown_and_for_a_terminal():
    from rich.console import Console

    table = Table(
        ["", "a"], [["row", Bold("1")], ["other", "2"]], "Title", "Best in bold."
    )
    assert table.markdown() == (
        "### Title\n\n|  | a |\n|---|---|\n| row | **1** |\n| other | 2 |\n\n"
        "Best in bold."
    )
    console = Console(width=40, force_terminal=False)
    with console.capture() as capture:
        console.print(table.rich(bold=False))
    lines = [line.strip() for line in capture.get().splitlines() if line.strip()]
    assert lines[0] == "Title"
    assert lines[-1] == "Best marked *."
    assert [line.split() for line in lines[-3:-1]] == [["row", "*1"], ["other", "2"]]


def test_a_cell_is_the_mean_and_deviation_over_seeds(tmp_path):
    runs = [
        made(tmp_path, loss, seed, accuracy)
        for loss, accuracies in {"au": (70, 72, 77), "xe": (60, 60, 60)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    (found,) = comparisons(runs, ("accuracy", "ece"))
    assert found.heading == ["", "XE", "AU"]
    # Mean 73, deviations −3, −1, 4: √(26/2).
    line = "| Accuracy ↑ | 60.00 ±0.00 | **73.00 ±3.61** |"
    assert line in found.markdown()
    # The confidence of every sample is 73.1 %.
    assert [isinstance(cell, Bold) for cell in found.rows[1]] == [False, False, True]
    assert "mean ± standard deviation over 3 seeds" in found.caption


def test_columns_of_one_loss_are_told_apart_and_equal_cells_are_all_marked(tmp_path):
    runs = [
        made(tmp_path, "au", 0, 60, csf="msp"),
        made(tmp_path, "au", 0, 60, csf="margin", smoothing=0.1),
    ]
    (found,) = comparisons(runs, ("accuracy",))
    assert found.heading[1:] == [
        "AU (csf msp, smoothing None)",
        "AU (csf margin, smoothing 0.1)",
    ]
    assert "| **60.00** | **60.00** |" in found.markdown()


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        # Means 60, 70 and 71, with intervals of ±2.5: the last two are the best.
        ([[59, 60, 61], [69, 70, 71], [70, 71, 72]], [False, True, True]),
        # Means 60, 61 and 62, ±25: chance.
        ([[50, 60, 70], [51, 61, 71], [52, 62, 72]], [False] * 3),
        # One seed each: the printed numbers.
        ([[60], [61], [61]], [False, True, True]),
        # Nobody knows how far a single seed is from its mean.
        ([[59, 60, 61], [61]], [False, False]),
    ],
)
def test_what_intervals_cannot_tell_from_the_best_is_marked_too(rows, marked):
    cells = [cell_of(values) for values in rows]
    assert [cell.best for cell in best([*cells, None], 2, True)[:-1]] == marked
    lower = [cell_of([-value for value in values]) for values in rows]
    assert [cell.best for cell in best(lower, 2, False)] == marked


def test_epochs_are_shown_where_they_differ(tmp_path):
    same = [made(tmp_path, loss, 0, 60) for loss in ("xe", "au")]
    (found,) = comparisons(same, ("accuracy",))
    assert "epochs" not in found.markdown()
    (found,) = comparisons(
        [same[0], made(tmp_path, "au", 0, 60, epochs=20)], ("accuracy",)
    )
    assert "| epochs | 60 | 20 |" in found.markdown()


def test_titles_tell_wrong_labels_and_transformers_trained_from_scratch(tmp_path):
    runs = [made(tmp_path, "xe", 0, 60, model=name) for name in ("cnn", "vit_small")]
    titles = [found.title for found in comparisons(runs, ("accuracy",))]
    assert titles == [
        "digits, cnn (20 % of the labels are wrong)",
        "digits, vit_small (from scratch)",
    ]
