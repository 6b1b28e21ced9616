"""The experiments of the study are valid, and its page has their results."""

import dataclasses

import numpy as np
import pytest
import tiny_run

from keras_selcal import TemperatureScaling, functional
from recipes import cli, commands, models, study, study_plan, study_tables, tasks
from recipes.launch import Ended
from recipes.runs import RunError

pytestmark = pytest.mark.backend_free


def test_every_experiment_is_a_command_of_its_own():
    names, settings = set(), set()
    for one in study_plan.experiments():
        parser = cli._parser()
        options = parser.parse_args(["train", *one.arguments])
        task = tasks.task_of(commands.request_of(options))
        names.add(one.name)
        settings.add(repr(task))
        assert task.seed == one.seed
        if one.loss == "au":
            chosen = task.settings.loss
            assert chosen["csf"] == one.csf
            assert chosen["smoothing"] == one.smoothing
            assert chosen["weight_gradient"] == one.weight_gradient
        rise = task.settings.weight_gradient_rise
        assert (rise is not None) == one.rises
        if one.rises:
            first, last = rise
            assert (4 * first, 2 * last) == (task.settings.epochs,) * 2
        # The last epoch is evaluated, whatever its validation loss.
        assert task.settings.validate_every == task.settings.epochs
    count = len(list(study_plan.experiments()))
    assert len(names) == len(settings) == count


def test_finished_runs_are_measured_and_missing_ones_started(tmp_path, monkeypatch):
    """A failed run is reported, and the results of the others are written."""
    monkeypatch.setattr(models, "build", tiny_run.build)
    done, wrong = (
        study_plan.Experiment("scratch", "au"),
        study_plan.Experiment("scratch", "xe"),
    )
    run = tiny_run.train(tmp_path / done.name, epochs=2)

    def run_all(jobs, engine, *, at_once, report):
        (job,) = jobs
        assert (job.run.name, engine, at_once) == (wrong.name, "local", 2)
        assert job.command[4:] == (
            *wrong.arguments,
            *("--data-dir", "DATA", "--out", str(tmp_path / wrong.name)),
        )
        failed = Ended(job, "exit code 1", "last words", 1.0)
        report(failed)
        return [failed]

    monkeypatch.setattr(study, "experiments", lambda: [done, wrong])
    monkeypatch.setattr(study, "run_all", run_all)
    with pytest.raises(RunError, match="1 runs failed"):
        study.run_study(tmp_path, data_dir="DATA", jobs=2)
    ((experiment, found),) = study_tables.read_results(tmp_path / "results.csv")
    assert experiment == done
    assert "## scratch" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    logits, labels = run.predictions("test")
    accuracy = 100 * np.mean(logits.argmax(1) == labels)
    assert found["accuracy"] == pytest.approx(accuracy, rel=1e-5)
    temperature = TemperatureScaling("ece").fit(*run.predictions("val")).temperature
    assert found["temperature"] == pytest.approx(temperature)
    scaled = functional.ece(labels, logits / temperature, from_logits=True)
    assert found["ece_ts"] == pytest.approx(100 * float(scaled), rel=1e-5)
    last = run.history()[-1]["accuracy"]
    assert found["training_accuracy"] == pytest.approx(100 * last, rel=1e-5)


def results(value=lambda one: 10.0 + one.seed):
    names = (
        "accuracy",
        *study_tables.SCALED,
        *(f"{n}_ts" for n in study_tables.SCALED),
    )
    names += ("temperature", "training_accuracy", "seconds")
    return [
        study_tables.StudyResult(one, dict.fromkeys(names, value(one)))
        for one in study_plan.experiments()
    ]


def test_results_come_back_from_their_file(tmp_path):
    made = results(lambda one: 10.0 + one.smoothing)
    study_tables.write_results(made, tmp_path / "results.csv")
    assert study_tables.read_results(tmp_path / "results.csv") == made


def test_cells_are_means_over_seeds_and_empty_without_runs():
    made = results()
    tables = study_tables.tables(made)
    # Seeds 0, 1, 2: mean 11, standard deviation 1.
    assert tables["scratch"].count("11.00 ±1.00") == 7 * 9
    assert tables["csf"].count("| 3 ") == 3
    assert "| 0.1 | 0.75 | 0.3 | 0.15 | 0.05 | 0.015 |" in tables["drag"]
    high = dataclasses.replace(made[0].experiment, loss="au", smoothing=0.3)
    changed = [
        r._replace(values={**r.values, "ece": 77.7}) if r.experiment == high else r
        for r in made
    ]
    assert (
        "| 0 | 10.0 | 10.0 | 10.0 | 77.7 | 10.0 |"
        in study_tables.tables(changed)["ece"]
    )
    rows = tables["choices_digits"].splitlines()
    assert rows[2].startswith("| XE | **11.00 ±1.00** | ")
    assert rows[3].startswith("| ν = 0.1, w = 0 (default) | ")
    assert rows[-1].startswith("| ν = 0.1, w = 0.3, rising | ")
    assert len(rows) == 3 + len(study_plan.CHOICES)
    # A missing run leaves its cell empty.
    fewer = [r for r in made if r.experiment != high]
    assert "| 0 | 10.0 | 10.0 | 10.0 |  | 10.0 |" in study_tables.tables(fewer)["ece"]


def test_new_results_replace_and_join_those_of_the_page(tmp_path, monkeypatch):
    first, second, *_ = results()
    for name, text in (
        ("PAGE", "<!-- table scratch -->x<!-- end -->"),
        ("RESULTS", ""),
    ):
        monkeypatch.setattr(study, name, tmp_path / name)
        (tmp_path / name).write_text(text)
    study_tables.write_results([first, second], study.RESULTS)
    changed = first._replace(values={**first.values, "ece": 77.7})
    study._update_page([changed])
    assert study_tables.read_results(study.RESULTS) == [changed, second]
    assert "| ECE ↓ | 77.70 | **10.00** |" in study.PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_tables_of_the_results():
    page = study.PAGE.read_text(encoding="utf-8")
    assert study_tables.with_tables(page, study_tables.read_results()) == page
    assert set(study_tables.tables(results())) == set(study_tables.tables_in(page))
