"""The study: its path on a small bed, its rules, and its page."""

import csv
import json
import math

import keras
import numpy as np
import pytest

from keras_selcal import TemperatureScaling, functional
from recipes import cli, contest, study, study_page
from recipes.data import adult, text
from recipes.data.base import DataError, Split


def samples():
    rng = np.random.default_rng(0)
    y = np.arange(120, dtype="int32") % 3
    x = (np.eye(3)[y] + 0.8 * rng.normal(size=(120, 3))).astype("float32")
    people = 5 * np.eye(3)[y[:30]] + 1
    unknown = rng.normal(size=(20, 3)).astype("float32")
    return contest.Splits(
        Split(x[30:], y[30:]),
        Split(x[:0], y[:0]),
        Split(x[:30], y[:30]),
        unknown,
        people,
    )


BED = {"small": study.Bed("small", lambda folders: samples(), 64, 24, 3, 3)}
NOWHERE = study.Folders(None, None, None, "cache")


@pytest.fixture
def few_trials(monkeypatch):
    for module in (study, study_page):
        monkeypatch.setattr(module, "CONFIGURATIONS", 2)


@pytest.mark.backend_free
def test_a_small_study_runs_resumes_and_is_measured(tmp_path, few_trials):
    path = tmp_path / "results.csv"
    plan = study.Study(NOWHERE, path, BED)
    trained = list(plan.run(seeds=2, losses=("xe", "au")))
    # Two seeds and one trial of each loss, and the winner where it is that trial.
    winners = sum(plan.winner("small", loss) == 1 for loss in ("xe", "au"))
    assert len(trained) == 2 * 2 + 2 + winners
    rows = study.read_results(path)
    assert len(rows) == 2 * len(trained)
    again = study.Study(NOWHERE, path, BED)
    assert not list(again.run(seeds=2, losses=("xe", "au")))
    for row in rows:
        assert 1 <= row["epoch"] <= 3
        assert 0 < row["test_accuracy"] <= 100
        # The temperature minimises the NLL of the validation data.
        assert row["val_nll_ts"] <= row["val_nll"] + 1e-5
        assert row["people_nll"] > 0
        assert 0 <= row["unknown_auroc"] <= 100
    for last, best in zip(rows[::2], rows[1::2], strict=True):
        assert (last["protocol"], best["protocol"]) == ("last", "best")
        assert best["val_nll"] <= last["val_nll"] + 1e-5
    found = study_page.cells(rows)
    assert set(found["small", "xe", "search"]) == {0, 1}


@pytest.mark.backend_free
def test_a_seed_decides_all_but_the_loss():
    """A model that was used before starts as a new one, whatever it was trained on."""
    bed = BED["small"]
    engine = contest.Contest(lambda rate: study.mlp((3,), 3, rate))
    setting = contest.Setting.default("xe", 2, batch_size=32)
    data = bed.samples(samples(), seed=1)
    first, _ = engine.train(setting, data, 1)
    engine.train(setting, bed.samples(samples(), seed=2), 2)
    second, _ = engine.train(setting, data, 1)
    fresh = contest.Contest(engine.build)
    third, _ = fresh.train(setting, data, 1)
    for other in (second, third):
        np.testing.assert_allclose(other["last"].test, first["last"].test, rtol=1e-5)


def test_measures_are_those_of_the_library():
    rng = np.random.default_rng(1)
    data = samples()
    data = contest.Splits(data.train, data.test, data.test, people=data.people)
    logits = rng.normal(size=(30, 3)).astype("float32")
    outcome = contest.Trained(1, 0.5, logits, logits, None)
    found = contest.measures(outcome, data)
    t = float(TemperatureScaling().fit(logits, data.test.y).temperature)
    assert found["temperature"] == pytest.approx(t)
    ece = functional.ece(data.test.y, logits / t, from_logits=True)
    assert found["test_ece_ts"] == pytest.approx(100 * float(ece), rel=1e-5)
    nll = functional.nll(data.test.y, logits, from_logits=True)
    assert found["test_nll"] == pytest.approx(float(nll), rel=1e-5)
    assert "unknown_auroc" not in found
    # With certain people it is the NLL.
    certain = contest.Splits(
        data.train, data.val, data.test, people=np.eye(3)[data.test.y]
    )
    assert contest.measures(outcome, certain)["people_nll"] == pytest.approx(
        found["test_nll"], rel=1e-5
    )


@pytest.mark.backend_free
def test_every_loss_and_setting_can_be_built():
    names = set()
    for loss in contest.LOSSES:
        settings = contest.Setting.default(loss, 20).searched(6)
        assert len(set(settings)) == 6
        for one in settings:
            assert isinstance(one.build_loss(), keras.losses.Loss)
        # The budget is the same for each loss.
        names.add(tuple((s.epochs, s.learning_rate, s.weight_decay) for s in settings))
    assert len(names) == 1


@pytest.mark.backend_free
def test_intervals_are_students():
    values = [1.0, 2.0, 4.0, 5.0, 3.0]
    gap = contest.paired(values)
    assert gap.mean == 3
    assert gap.half == pytest.approx(2.7764451 * np.std(values, ddof=1) / math.sqrt(5))
    assert math.isnan(contest.paired([1.0]).half)
    assert contest.paired([1.0]).verdict("nll") == "undecided"
    assert gap.verdict("test_nll_ts") == "worse"
    assert gap.verdict("val_accuracy") == gap.verdict("coverage_ts") == "better"
    assert gap.text("nll", 1) == "+3.0 ±2.0 ▼"
    assert contest.Gap(-1.0, 2.0).text("nll", 1) == "−1.0 ±2.0"


def rows(value, seeds=3):
    """Rows of all beds and losses, `value(bed, loss, seed)` in every column."""
    return [
        {
            **dict.fromkeys(study.FIELDS, value(bed, loss, seed)),
            **{
                "bed": bed,
                "loss": loss,
                "protocol": protocol,
                "seed": seed,
                "trial": 0,
            },
        }
        for bed in study.BEDS
        for loss in contest.LOSSES
        for protocol in ("last", "best")
        for seed in range(seeds)
    ]


@pytest.mark.backend_free
def test_tables_count_beds_by_paired_seeds():
    # The seeds differ by far more than the losses: only pairs show the difference.
    def value(bed, loss, seed):
        worse = 0.1 * (loss == "au") + 0.001 * seed * (loss != "xe")
        return 10.0 * seed + (worse if bed != "digits" else 0.0)

    made = study_page.tables(rows(value))
    lines = made["summary_last"].splitlines()
    au = next(line for line in lines if line.startswith("| AU |"))
    assert au.split(" | ")[1:4] == ["7 : 0 of 8", "0 : 7 of 8", "0 : 7 of 8"]
    assert "| +0.101 ±0.002 ▼ |" in made["nll_ts_last"]
    assert made["summary_search"] == "Not run yet."
    assert "| GoEmotions | 8,064 | 2,000 | 28 | 15 | 3 | 3 | 0 |" in made["runs"]


@pytest.mark.backend_free
def test_a_search_counts_once_all_its_trials_are_run():
    def row(trial, seed, nll):
        key = {"bed": "digits", "loss": "xe", "protocol": "best"}
        return {**key, "trial": trial, "seed": seed, "val_nll": nll}

    made = [row(t, 0, 1.0 - 0.1 * (t == 2)) for t in range(study.CONFIGURATIONS)]
    made += [row(2, 1, 5.0), row(0, 1, 0.1)]
    found = study_page.cells(made)
    assert set(found["digits", "xe", "search"]) == {0, 1}
    assert found["digits", "xe", "search"][1]["val_nll"] == 5.0
    assert ("digits", "xe", "search") not in study_page.cells(made[1:])


@pytest.mark.backend_free
def test_the_page_has_the_tables_of_the_results():
    page = study.PAGE.read_text(encoding="utf-8")
    assert study_page.with_tables(page, study.read_results()) == page
    assert set(study_page.tables_in(page)) == set(study_page.tables([]))


@pytest.mark.backend_free
def test_beds_without_data_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results.csv"
    monkeypatch.setattr(study.Study.__init__, "__defaults__", (results, study.BEDS))
    assert cli.main(["study", "--bed", "adult,goemotions", "--losses", "xe"]) == 0
    said = capsys.readouterr().out
    assert "left out: adult: its data needs the option --adult" in said
    assert "left out: goemotions: its data needs the option --data-dir" in said
    assert not results.exists()
    with pytest.raises(ValueError, match="bed"):
        list(study.Study(NOWHERE, results).run(beds=("mnist",)))


@pytest.mark.backend_free
def test_adult_is_scaled_and_one_hot(tmp_path):
    line = "39, {}, 77516, Bachelors, 13, A, B, C, D, Male, {}, 0, 40, US, {}\n"
    train = line.format("State", 0, "<=50K") + line.format("Private", 10, ">50K")
    (tmp_path / "adult.data").write_text(train.replace("39, State", "49, State") + "\n")
    (tmp_path / "adult.test").write_text("|1x3\n" + line.format("New", 0, ">50K."))
    kept, test = adult.load(tmp_path)
    assert kept.y.tolist() == [0, 1]
    assert test.y.tolist() == [1]
    np.testing.assert_allclose(kept.x[:, 0], [1, -1])
    assert kept.x[:, 6:8].tolist() == [[0, 1], [1, 0]]
    assert test.x[0, 6:8].tolist() == [0, 0]


@pytest.mark.backend_free
def test_texts_are_read_from_their_published_files(tmp_path):
    (tmp_path / "goemotions_classes.txt").write_text("joy\nfear\n")
    for split in ("train", "dev", "test"):
        body = f"{split} a\t1\tid\nboth\t0,1\tid\n"
        (tmp_path / f"goemotions_{split}.tsv").write_text(body)
        with open(tmp_path / f"banking77_{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows(
                [("text", "category"), ("b, b", "z"), ("a", "y")]
            )
    found = text.load("goemotions", tmp_path)
    assert found.train.x.tolist() == ["train a", "dev a"]
    assert found.train.y.tolist() == [1, 1]
    assert found.class_names == ("joy", "fear")
    found = text.load("banking77", tmp_path)
    assert found.test.x.tolist() == ["b, b", "a"]
    assert found.test.y.tolist() == [1, 0]
    parts = {"train": [["a", "x"]], "val": [["b", "y"]], "test": [["c", "y"]]}
    parts["oos_test"] = [["d", "oos"]]
    (tmp_path / "clinc150.json").write_text(json.dumps(parts))
    found = text.load("clinc150", tmp_path)
    assert found.train.y.tolist() == [0, 1]
    assert found.unknown.tolist() == ["d"]
    (tmp_path / "one.csv").write_text("text\na\n")
    with pytest.raises(DataError, match="a text and a label"):
        text.read_csv(tmp_path / "one.csv")


@pytest.mark.backend_free
def test_embeddings_are_means_of_word_pieces(tmp_path):
    pytest.importorskip("wordllama")
    cache = tmp_path / "cache" / "x.npy"
    once, twice, none = text.embed(["card", "card card", ""], cache)
    np.testing.assert_allclose(once, twice, rtol=1e-5)
    assert once.shape == none.shape == (256,)
    assert text.embed(["", "", ""], cache).tolist() == [[*once], [*twice], [*none]]
