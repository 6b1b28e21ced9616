"""The experiment on the paper's central claim."""

import numpy as np
import pytest

from recipes.data.base import Preprocessing, Split
from recipes.experiment import defaults, plan, training, verdicts
from recipes.experiment.verdicts import Cell

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


def small_data():
    rng = np.random.default_rng(0)
    y = np.arange(300, dtype="int32") % 10
    x = (rng.integers(0, 60, (300, 14, 14, 4)) + 15 * y[:, None, None, None]).astype(
        "uint8"
    )
    split = Split(x, y)
    preprocessing = Preprocessing((14, 14), (0.3,) * 4, (0.3,) * 4)
    return plan.Data(split, split[:100], split[100:200], preprocessing)


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
def test_rows_are_read_as_they_were_written(tmp_path):
    row = dict.fromkeys(training.FIELDS, 0.5)
    row |= {"bed": "fashion", "arm": "xe", "seed": 1, "checkpoint": "best"}
    row |= {"scaling": "ts", "test_nll": float("nan")}
    path = tmp_path / "results.csv"
    training.append([row], path)
    training.append([{**row, "seed": 2}], path)
    read = training.read(path)
    assert [r["seed"] for r in read] == [1, 2]
    assert read[0]["arm"] == "xe"
    assert np.isnan(read[0]["test_nll"])
    assert path.read_text().count("bed,") == 1


@pytest.mark.backend_free
def test_the_page_has_what_the_results_say():
    text = verdicts.PAGE.read_text(encoding="utf-8").partition(verdicts.HEADING)[2]
    assert text == "\n" + verdicts.results(training.read())


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
@pytest.mark.parametrize("arm", plan.ARMS)
def test_every_arm_trains(arm, tmp_path):
    found = training.train("fashion", arm, 0, small_data(), tmp_path, epochs=2)
    assert [(r["checkpoint"], r["scaling"]) for r in found] == [
        *[("last", "none"), ("last", "ts")],
        *[("best", "none"), ("best", "ts")],
    ]
    assert all(np.isfinite(row[f"test_{m}"]) for row in found for m in training.METRICS)
    assert not list(tmp_path.glob("*.npz"))


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
@pytest.mark.parametrize("arm", ["au_rising", "au_released"])
def test_a_killed_run_continues_with_the_same_figures(arm, tmp_path, monkeypatch):
    data = small_data()
    whole = training.train("fashion", arm, 1, data, tmp_path, epochs=4)
    save = training._State.on_epoch_end

    def killed(self, epoch, logs=None):
        save(self, epoch, logs)
        if epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training._State, "on_epoch_end", killed)
        with pytest.raises(KeyboardInterrupt):
            training.train("fashion", arm, 1, data, tmp_path, epochs=4)
    rest = training.train("fashion", arm, 1, data, tmp_path, epochs=4)
    for one, other in zip(whole, rest, strict=True):
        del one["cpu_seconds"], other["cpu_seconds"]
        assert one == other


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


@pytest.mark.backend_free
def test_a_default_changes_only_by_the_rule():
    default, other, *_ = defaults.CANDIDATES
    assert default == defaults.DEFAULT
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
    found = defaults.train("digits", "adam", defaults.DEFAULT, pool, 0)
    assert found["accuracy"] > 30
    assert list(found) == list(defaults.FIELDS[7:])


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_w_rises_in_the_second_quarter():
    import keras

    seen = []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(round(self.model.loss.weight_gradient, 3))

    data = small_data()
    model = plan.BEDS["fashion"].network()
    model.compile("sgd", plan.ARMS["au_rising"].loss())
    model.fit(
        *(data.val.x[:20].astype("float32"), data.val.y[:20]),
        epochs=8,
        verbose=0,
        callbacks=[*plan.ARMS["au_rising"].callbacks(8), Seen()],
    )
    assert seen == [0, 0, 0, 0.15, 0.3, 0.3, 0.3, 0.3]
