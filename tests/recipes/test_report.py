"""The page of some runs."""

import pytest

from recipes.cli import main
from recipes.runs import Predictions, Run


def make_run(folder, logits, labels, **config):
    run = Run(folder)
    with run.lock():
        run.claim({"loss": "au", **config})
        for split in ("val", "test"):
            run.write_predictions(split, Predictions(logits, labels))
        run.finish({"seconds": 1.0})


@pytest.fixture
def runs(rng, tmp_path):
    logits, labels = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    names = ["<cat>", "dog", "cow"]
    make_run(tmp_path / "runs" / "a", logits, labels)
    make_run(tmp_path / "runs" / "b", 3 * logits, labels, class_names=names)
    make_run(tmp_path / "other", logits[:30], labels[:30])
    return tmp_path


def test_page_of_runs(runs, capsys):
    output = runs / "report.html"
    assert (
        main(["report", str(runs / "runs"), "-o", str(output), "--title", "A & B"]) == 0
    )
    assert capsys.readouterr().out == f"{output}: open it in a browser\n"
    page = output.read_text("utf-8")
    assert "<title>A &amp; B</title>" in page
    assert "<h3>b against a</h3>" in page
    assert "40 samples, 3 classes" in page
    assert "&lt;cat&gt;" in page


def test_runs_that_cannot_be_reported(runs, capsys):
    (runs / "begun").mkdir()
    (runs / "begun" / "config.json").write_text("{}")
    for folders, told in (
        (["runs/a", "other"], "other and a are of other test data"),
        (["nowhere"], "there is no run"),
        (["begun"], "is not finished"),
    ):
        paths = [str(runs / folder) for folder in folders]
        assert main(["report", *paths, "-o", str(runs / "report.html")]) == 1
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert not (runs / "report.html").exists()
