"""The study: its rules, and the tables of its page."""

import math
import re

import numpy as np
import pytest

from recipes import study
from recipes.evaluation import Gap, paired

pytestmark = pytest.mark.backend_free

FIELDS = study.read_results()[0].keys()


def test_intervals_are_students():
    values = [1.0, 2.0, 4.0, 5.0, 3.0]
    gap = paired(values)
    assert gap.mean == 3
    assert gap.half == pytest.approx(2.7764451 * np.std(values, ddof=1) / math.sqrt(5))
    assert math.isnan(paired([1.0]).half)
    assert paired([1.0]).verdict("nll") == "undecided"
    assert gap.verdict("test_nll_ts") == "worse"
    assert gap.verdict("val_accuracy") == gap.verdict("coverage_ts") == "better"
    assert gap.text("nll") == "+3.000 ±1.963 ▼"
    assert Gap(-1.0, 2.0).text("ece") == "−1.00 ±2.00"


def rows(value, seeds=3):
    """Rows of all beds and losses, `value(bed, loss, seed)` in every column."""
    return [
        {
            **dict.fromkeys(FIELDS, value(bed, loss, seed)),
            **{
                "bed": bed,
                "loss": loss,
                "protocol": protocol,
                "seed": seed,
                "trial": 0,
            },
        }
        for bed in study.BEDS
        for loss in study.LOSSES
        for protocol in ("last", "best")
        for seed in range(seeds)
    ]


def test_tables_count_beds_by_paired_seeds():
    # The seeds differ by far more than the losses: only pairs show the difference.
    def value(bed, loss, seed):
        worse = 0.1 * (loss == "au") + 0.001 * seed * (loss != "xe")
        return 10.0 * seed + (worse if bed != "digits" else 0.0)

    made = study.tables(rows(value))
    lines = made["summary_last"].splitlines()
    au = next(line for line in lines if line.startswith("| AU |"))
    assert au.split(" | ")[1:4] == ["7 : 0 of 8", "0 : 7 of 8", "0 : 7 of 8"]
    assert "| +0.101 ±0.002 ▼ |" in made["nll_ts_last"]
    assert made["summary_search"] == "Not run yet."


def test_a_search_counts_once_all_its_trials_are_run():
    def row(trial, seed, nll):
        key = {"bed": "digits", "loss": "xe", "protocol": "best"}
        return {**key, "trial": trial, "seed": seed, "val_nll": nll}

    made = [row(t, 0, 1.0 - 0.1 * (t == 2)) for t in range(study.CONFIGURATIONS)]
    made += [row(2, 1, 5.0), row(0, 1, 0.1)]
    found = study.cells(made)
    assert set(found["digits", "xe", "search"]) == {0, 1}
    assert found["digits", "xe", "search"][1]["val_nll"] == 5.0
    assert ("digits", "xe", "search") not in study.cells(made[1:])


def test_the_page_has_the_tables_of_the_results():
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.with_tables(page, study.read_results()) == page
    assert {*re.findall(r"<!-- table (\w+) -->", page)} == {*study.tables([])}
