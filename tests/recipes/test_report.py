"""The report on runs."""

import pytest
from finished import finish

from recipes import data
from recipes.cli import main
from recipes.runs import Predictions, Run
from recipes.training import split_digest

pytestmark = pytest.mark.backend_free

NAMES = ["<cat>", "dog", "cow"]


def make_run(folder, logits, labels, dataset="cifar10", changed=(), **found):
    run = Run(folder)
    with run.lock():
        run.claim(
            {
                "loss": "au",
                "model": "cnn",
                "seed": 0,
                "dataset": dataset,
                "label_noise": None,
                "settings": {"image_size": None, "epochs": 1, **dict(changed)},
                "data": {"class_names": NAMES, **found},
            }
        )
        finish(run, Predictions(logits, labels))


@pytest.fixture
def runs(rng, tmp_path):
    logits, labels = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    make_run(tmp_path / "runs" / "a", logits, labels)
    make_run(tmp_path / "runs" / "b", 3 * logits, labels, changed={"decay": 0.1})
    make_run(tmp_path / "other", logits[:30], labels[:30], changed={"decay": 0.3})
    return tmp_path


def test_the_report_compares_runs_with_the_first(runs, capsys):
    output = runs / "report.html"
    assert main(["evaluate", str(runs / "runs"), "--html", str(output)]) == 0
    assert capsys.readouterr().out.endswith(f"{output}: open it in a browser\n")
    page = output.read_text("utf-8")
    assert "Compared with <strong>a</strong>, <strong>b</strong>" in page
    assert "40 samples, 3 classes" in page
    assert "&lt;cat&gt;" in page
    assert "data:image/png" not in page


def test_mistakes_are_shown_as_images_if_the_data_is_the_same(rng, tmp_path, capsys):
    digits = data.load("digits")
    logits = rng.normal(size=(len(digits.test), 10))
    of_data = {
        "dataset": "digits",
        "class_names": list(digits.class_names),
        "test": split_digest(digits.test),
        "val": {"samples": 1, "sha256": "of others"},
    }
    make_run(tmp_path / "run", logits, digits.test.y, **of_data)
    page = tmp_path / "report.html"
    assert main(["evaluate", str(tmp_path / "run"), "--html", str(page)]) == 0
    assert page.read_text("utf-8").count("data:image/png") > 5
    command = ["evaluate", str(tmp_path / "run"), "--html", str(page)]
    assert main([*command, "--split", "val"]) == 1
    assert "the val data of the run is not that of" in capsys.readouterr().err


def test_runs_that_cannot_be_reported_end_in_one_line(runs, capsys):
    (runs / "begun").mkdir()
    (runs / "begun" / "config.json").write_text("{}")
    for folders, message in (
        (["runs/a", "other"], "other and a have different test data"),
        (["nowhere"], "there is no run"),
        (["begun"], "begun/config.json: it has no dataset"),
    ):
        paths = [str(runs / folder) for folder in folders]
        page = str(runs / "report.html")
        assert main(["evaluate", *paths, "--html", page]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (runs / "report.html").exists()
