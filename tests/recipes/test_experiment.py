"""The experiment on the paper's central claim."""

import argparse
import gzip
import math

import keras
import numpy as np
import pytest
from finished import finish

from keras_selcal import AULoss
from recipes import losses, models, training
from recipes.data import fashion
from recipes.experiment import __main__ as command
from recipes.experiment import defaults, plan, results, verdicts
from recipes.experiment.verdicts import Cell
from recipes.progress import Progress, console
from recipes.runs import Predictions, Run
from recipes.tasks import DivergenceError

BEST = Cell("fashion", "best", "none")


def rows(seeds=3, cell=BEST, **gaps):
    """Rows in which an arm's ECE differs from that of cross-entropy by `gaps`."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(seeds):
        base = rng.normal(5, 0.5)
        for arm in plan.ARMS:
            gap = gaps.get(arm, 0.0)
            if gap is None:
                continue
            noise = 0.0 if arm == "xe" else rng.normal(0, 0.01)
            accuracy = 90 + gaps.get(f"{arm}_accuracy", 0.0)
            found.append(
                {
                    **cell._asdict(),
                    "arm": arm,
                    "seed": float(seed),
                    "test_accuracy": accuracy,
                    "test_ece": base + gap + noise,
                    "test_cwece": 1.0,
                }
            )
    return found


@pytest.fixture
def clothes(tmp_path, monkeypatch):
    """A folder in the form of Fashion-MNIST, with 300 images that are easy to tell."""
    rng = np.random.default_rng(0)
    y = np.arange(300, dtype="uint8") % 10
    x = (rng.integers(0, 60, (300, 28, 28)) + 15 * y[:, None, None]).astype("uint8")
    folder = tmp_path / "clothes"
    folder.mkdir()
    for part in ("train", "t10k"):
        for name, size, array in (("images-idx3", 16, x), ("labels-idx1", 8, y)):
            content = gzip.compress(bytes(size) + array.tobytes())
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(content)
    monkeypatch.setattr(fashion, "_VALIDATION", 100)
    return str(folder)


@pytest.mark.backend_free
def test_two_seeds_prove_nothing():
    two = rows(seeds=2, au_w1=-2.0)
    assert verdicts.verdict(two, BEST, "ece_below_xe") == "could not be tested"
    assert verdicts.ordering(two) == "could not be tested here"
    assert verdicts.ordering([]) == "could not be tested here"


@pytest.mark.backend_free
def test_a_reading_that_is_lower_is_enough():
    found = rows(au_w1=-2.0, au_released=1.0, dual_focal=-3.0)
    assert verdicts.verdict(found, BEST, "ece_below_xe") == "holds"
    assert verdicts.verdict(found, BEST, "ece_below_xe", ["au_w1"]) == "holds"
    released = verdicts.verdict(found, BEST, "ece_below_xe", ["au_released"])
    assert released == "does not hold"
    assert verdicts.verdict(found, BEST, "ece_lowest") == "does not hold"
    assert verdicts.ordering(found) == "holds under a condition"


@pytest.mark.backend_free
def test_the_answer_has_verdicts_and_means():
    after = BEST._replace(scaling="ts")
    found = [*rows(au_w1=-2.0), *rows(cell=after)]
    text = verdicts.answer(found)
    assert "is *holds* before scaling and *undecided* after TS" in text
    ece = np.mean([*verdicts.figures(found, BEST, "au_w1", "ece").values()])
    assert f"ν = 0.76: {ece:.2f}, " in text
    assert verdicts.answer(rows(seeds=2)) == ""


@pytest.mark.backend_free
def test_all_verdicts_decide_the_ordering():
    low = {"au_w1": -2.0, "dual_focal": -1.0}
    after = BEST._replace(scaling="ts")
    both = [*rows(**low), *rows(cell=after, **low)]
    assert verdicts.ordering(both) == "holds"
    high = {"au_w1": 2.0, "au_released": 2.0}
    assert verdicts.ordering([*rows(**low), *rows(cell=after, **high)]) == (
        "holds under a condition"
    )
    both = [*rows(**high), *rows(cell=after, **high)]
    assert verdicts.ordering(both) == "does not hold"


@pytest.mark.backend_free
def test_a_network_that_has_not_learnt_is_not_calibrated():
    lost = {"au_w1_accuracy": -1.5, "au_released_accuracy": -20.0}
    found = rows(au_w1=-2.0, au_released=-4.0, **lost)
    assert verdicts.verdict(found, BEST, "ece_below_xe") == "does not hold"
    found = rows(au_w1=-2.0, au_w1_accuracy=-0.9)
    assert verdicts.verdict(found, BEST, "ece_below_xe") == "holds"


@pytest.mark.backend_free
def test_a_difference_within_its_interval_is_undecided():
    found = rows(seeds=5)
    assert verdicts.compare(found, BEST, "au", "xe", "ece").word == "undecided"
    assert verdicts.verdict(found, BEST, "ece_below_xe") == "undecided"
    assert verdicts.ordering(found) == "undecided"


@pytest.mark.backend_free
def test_a_run_that_diverged_counts_as_worse():
    found = rows(au_w1=float("nan"))
    assert verdicts.compare(found, BEST, "au_w1", "xe", "ece").word == "higher"
    assert verdicts.compare(found, BEST, "xe", "au_w1", "ece").word == "lower"


@pytest.mark.backend_free
def test_the_interval_is_that_of_students_t():
    from scipy.stats import t, ttest_rel

    found = rows(seeds=5, au=-0.3)
    gap = verdicts.compare(found, BEST, "au", "xe", "ece")
    ours, theirs = (
        list(verdicts.figures(found, BEST, arm, "ece").values()) for arm in ("au", "xe")
    )
    interval = ttest_rel(ours, theirs).confidence_interval()
    assert (gap.mean - gap.half, gap.mean + gap.half) == pytest.approx(interval)
    wider = verdicts.compare(found, BEST, "au", "xe", "ece", comparisons=4)
    assert wider.half / gap.half == pytest.approx(
        t.ppf(1 - 0.025 / 4, 4) / t.ppf(0.975, 4)
    )


@pytest.mark.backend_free
def test_a_gain_is_ahead_by_nll_or_aurc_and_worse_by_nothing():
    def of(name, **gaps):
        cell = Cell("fashion", "best", "ts")
        rng = np.random.default_rng(0)
        return [
            {
                **{**cell._asdict(), "arm": arm, "seed": float(seed)},
                **{
                    f"test_{m}": 1 + seed + (arm == name) * (gaps.get(m, 0) + noise)
                    for m in results.METRICS
                    for noise in [rng.normal(0, 0.01)]
                },
            }
            for seed in range(5)
            for arm in ("xe", name)
        ]

    def said(**gaps):
        return verdicts.gain(of("ensemble", **gaps), "fashion", "ensemble")

    assert said() == "undecided"
    assert said(nll=-0.5) == said(aurc=-0.5, accuracy=0.5) == "ahead"
    assert said(nll=0.5) == "behind"
    assert said(nll=-0.5, aurc=0.5) == said(nll=-0.5, accuracy=-0.5) == "mixed"
    few = [row for row in of("ensemble", nll=-9.0) if row["seed"] < 2]
    assert verdicts.gain(few, "fashion", "ensemble") == "could not be tested"
    page = verdicts.results([], of("ensemble", nll=-0.5))
    assert "### Free gains: Fashion-MNIST" in page
    assert "| ahead |" in page


@pytest.mark.backend_free
def test_rows_are_read_as_they_were_written_and_only_once(tmp_path):
    row = dict.fromkeys(results.FIELDS, 0.5)
    row |= {"bed": "fashion", "arm": "xe", "seed": 1, "checkpoint": "best"}
    row |= {"scaling": "ts", "test_nll": float("nan")}
    path = tmp_path / "results.csv"
    for one in (row, {**row, "seed": 2}, row):
        results.append([one], path)
    read = results.read(path)
    assert [r["seed"] for r in read] == [1, 2]
    assert read[0]["arm"] == "xe"
    assert np.isnan(read[0]["test_nll"])
    assert path.read_text().count("bed,") == 1


@pytest.mark.backend_free
def test_the_page_has_what_the_results_say():
    text = verdicts.PAGE.read_text(encoding="utf-8").partition(verdicts.HEADING)[2]
    rows_ = results.read(), results.read(results.GAINS)
    assert text == "\n" + verdicts.results(*rows_)


@pytest.mark.backend_free
def test_the_trainings_are_those_of_the_protocol():
    expected = {
        "fashion": ("fashion-mnist", "resnet8_folded", None, 6, 1),
        "cifar10": ("cifar10", "resnet20_folded", 10_000, 60, 12),
    }
    for bed in plan.BEDS:
        for run, arm in plan.RUNS.items():
            task = plan.task(bed, run, 2, "there")
            chosen = task.settings
            length = (chosen.epochs, chosen.warmup_epochs)
            found = (task.dataset, task.model, task.subset, *length)
            assert found == expected[bed]
            assert (task.split_seed, task.seed) == (2, 2 + 1000 * arm.copy)
            assert (chosen.batch_size, chosen.learning_rate) == (128, 0.1)
            assert (chosen.optimizer, chosen.schedule) == ("sgdw", "smooth_cosine")
            assert (chosen.momentum, chosen.nesterov) == (0.9, False)
            assert (chosen.weight_decay, chosen.clipnorm) == (0.005, 1.0)
            assert (chosen.select, chosen.dropout) == ("loss", 0.0)
            assert chosen.ema == (0.99 if run == "xe_ema" else None)
    rise = plan.task("fashion", "au_rising", 0, None).settings.weight_gradient_rise
    assert rise == (1.5, 3.0)


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_the_losses_are_those_of_the_protocol():
    def config(run):
        task = plan.task("cifar10", run, 0, None)
        return losses.build(task.loss, task.settings.loss).get_config()

    for run, w, nu in (("au", 0, 0.1), ("au_w1", 1, 0.76), ("au_rising", 0.3, 0.1)):
        found = config(run)
        assert (found["quantile"], found["csf"]) == (0.75, "msp")
        assert (found["weight_gradient"], found["smoothing"]) == (w, nu)
    found = config("au_released")
    assert (found["quantile"], found["smoothing"], found["csf"]) == (0.75, 0.1, "msp")
    found = config("dual_focal")
    assert (found["gamma"], found["variant"]) == (5.0, "intended")
    assert config("inv_focal")["gamma"] == 2.0
    assert (config("aurc")["estimator"], config("aurc")["csf"]) == ("harmonic", "msp")
    assert config("xe_smoothed")["label_smoothing"] == 0.1
    assert all(config(run)["from_logits"] for run in plan.RUNS)


def test_each_four_pixels_become_channels_of_one():
    x = np.random.default_rng(0).normal(size=(2, 28, 28, 1)).astype("float32")
    model = models.build("resnet8_folded", 10)
    assert model.count_params() == 75_914
    assert models.build("resnet20_folded", 10).count_params() == 272_394
    first = next(one for one in model.layers if one.name == "conv1")
    folded = keras.Model(model.inputs, first.input).predict(x, verbose=0)
    assert folded.shape == (2, 14, 14, 4)
    np.testing.assert_array_equal(folded[:, 3, 5, 2], x[:, 7, 10, 0])


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
@pytest.mark.parametrize("arm", ["au_rising", "au_released", "dual_focal"])
def test_an_arm_trains(arm, clothes, tmp_path):
    run, key = Run(tmp_path / "run"), {"bed": "fashion", "arm": arm, "seed": 0}
    with Progress(console(quiet=True)) as progress:
        training.train(run, plan.task("fashion", arm, 0, clothes, 2), progress)
    found = results.rows_of(key, [run])
    assert [tuple(row) for row in found] == [results.FIELDS] * 4
    assert [(r["checkpoint"], r["scaling"]) for r in found] == [
        *[("last", "none"), ("last", "ts")],
        *[("best", "none"), ("best", "ts")],
    ]
    assert all(np.isfinite(row[f"test_{m}"]) for row in found for m in results.METRICS)
    assert len(run.predictions("val").labels) == 100


def options(data_dir, tmp_path, **changes):
    chosen = {"bed": "fashion", "data_dir": data_dir, "free_gains": False}
    chosen |= {"arms": None, "seeds": [0, 1], "epochs": 2, "jobs": 1}
    chosen |= {"results": tmp_path / "results.csv", "work": tmp_path / "work"}
    return argparse.Namespace(**{**chosen, **changes})


@pytest.fixture
def trained(monkeypatch):
    """Stands in for the trainer: logits at random, and two runs that diverge."""
    names = []

    def train(run, task, progress, *, dataset):
        if run.finished:
            return
        names.append(run.name)
        if "au_w1" in run.name or run.name == "fashion-xe_copy1-1":
            raise DivergenceError("it diverges")
        rng = np.random.default_rng((task.seed, len(task.loss)))
        labels = dataset.val.y[:50]
        logits = rng.normal(size=(50, 10)) + 2 * np.eye(10)[labels]
        with run.lock():
            run.claim({**task.config(), "data": None})
            for split in ("last-val", "last-test"):
                run.write_predictions(split, Predictions(logits, labels))
            history = [{"epoch": 2.0, "cpu_seconds": 1.5}]
            found = Predictions(logits, labels)
            finish(run, found, history=history, environment={"best_epoch": 1})

    monkeypatch.setattr(training, "train", train)
    return names


def test_the_command_trains_what_is_missing(trained, clothes, tmp_path):
    command.train(options(clothes, tmp_path, arms=["xe", "au_w1"]))
    assert trained == [f"fashion-{a}-{s}" for s in (0, 1) for a in ("xe", "au_w1")]
    found = results.read(tmp_path / "results.csv")
    assert len(found) == 16
    for row in found:
        assert math.isnan(row["test_nll"]) == (row["arm"] == "au_w1")
    command.train(options(clothes, tmp_path, arms=["xe", "au_w1", "aurc"], seeds=[0]))
    assert trained[4:] == ["fashion-aurc-0"]


def test_free_gains_are_computed_from_the_logits_of_runs(trained, clothes, tmp_path):
    command.train(options(clothes, tmp_path, free_gains=True))
    assert len(trained) == len(set(trained)) == 2 * 5
    found = {
        (row["arm"], int(row["seed"])): row
        for row in results.read(tmp_path / "results.csv")
        if (row["checkpoint"], row["scaling"]) == ("best", "ts")
    }
    assert set(found) == {(name, seed) for name in plan.GAINS for seed in (0, 1)}
    assert math.isnan(found["ensemble", 1]["test_nll"])
    runs = [
        Run(tmp_path / "work" / f"fashion-{name}-0")
        for name in plan.GAINS["ensemble"].runs
    ]
    p = np.mean([softmax(run.predictions("test").logits) for run in runs], 0)
    mean = results.average(runs, "test")
    np.testing.assert_allclose(softmax(mean.logits), p, rtol=1e-5)
    accuracy = 100 * np.mean(p.argmax(1) == mean.labels)
    assert found["ensemble", 0]["test_accuracy"] == pytest.approx(accuracy)
    assert found["ensemble", 0]["cpu_seconds"] == round(3 * 1.5)
    assert found["ensemble", 0]["test_nll"] < found["xe", 0]["test_nll"]


def softmax(logits):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def chosen_from(accuracies, eces, beds=defaults.BEDS):
    """Rows in which candidates have these accuracies and ECEs in every cell."""
    found = []
    for number, bed in enumerate(beds):
        for optimizer in defaults.OPTIMIZERS:
            key = {"bed": bed, "optimizer": optimizer, "seed": 0.0}
            names = ("smoothing", "quantile", "weight_gradient")
            losses = {("xe", (0.0,) * 3): (90.0, 2.0)}
            for one in defaults.CANDIDATES:
                noise = 1 + 0.01 * number
                ece = eces.get(one, 2.0) * noise
                losses["au", one] = (accuracies.get(one, 90.0), ece)
            for (loss, arguments), (accuracy, ece) in losses.items():
                values = dict(zip(names, arguments, strict=True))
                metrics = {"accuracy": accuracy, "ece": ece, "cwece": 1.0, "nll": 1.0}
                found.append({**key, "loss": loss, **values, **metrics})
    return found


def test_the_defaults_of_au_are_those_that_the_rule_chose():
    loss, chosen = AULoss(), defaults.choice(defaults.read())
    assert (loss.smoothing, loss.weight_gradient) == (2.0, 0.0)
    assert chosen == (loss.smoothing, loss.quantile, loss.weight_gradient)
    free = defaults.choice(defaults.read(), constant_weights=False)
    assert free == (0.76, 1.0, 1.0)


@pytest.mark.backend_free
def test_a_default_changes_only_by_the_rule():
    default, other, *_ = defaults.CANDIDATES
    assert default == defaults.FORMER
    assert defaults.choice([]) == default
    better = chosen_from({}, {other: 1.0})
    assert defaults.choice(better) == other
    # With a bed missing, nothing is decided.
    assert defaults.choice(chosen_from({}, {other: 1.0}, ["digits"])) == default
    # A candidate that loses accuracy is not admissible.
    assert defaults.choice(chosen_from({other: 88.9}, {other: 1.0})) == default
    # A default that loses accuracy is replaced by the best of the others.
    assert defaults.choice(chosen_from({default: 88.0}, {other: 1.9})) == other
    everyone = dict.fromkeys(defaults.CANDIDATES, 80.0)
    assert defaults.choice(chosen_from(everyone, {other: 1.0})) == default
    assert "| 0.1 | 1 | 0 | 0.0 |" in defaults.table(better)


@pytest.mark.backend_free
def test_what_is_trained_is_not_trained_again():
    rows_ = chosen_from({}, {}, ["digits"])
    left = list(defaults.missing(rows_, ["digits"]))
    assert {key[-1] for key, _ in left} == {1, 2}
    assert len(left) == 2 * 2 * (1 + len(defaults.CANDIDATES))


def test_a_small_bed_is_trained(monkeypatch):
    monkeypatch.setitem(
        defaults.BEDS, "digits", defaults.BEDS["digits"]._replace(epochs=1)
    )
    pool = defaults.BEDS["digits"].load(None)
    found = defaults.train("digits", "adam", defaults.FORMER, pool, 0)
    assert found["accuracy"] > 30
    assert list(found) == list(defaults.FIELDS[7:])
