"""The paper's numbers as data: complete, as printed, and consistent."""

from itertools import groupby

import pytest

from recipes import losses, models
from recipes.paper import published

pytestmark = pytest.mark.backend_free

FIGURES = published.figures()
ROWS = {
    row: {key.loss: figure for key, figure in numbers}
    for row, numbers in groupby(FIGURES.items(), key=lambda item: item[0][:5])
}
ACC, CW, ADAPTIVE = "combined_acc_ece", "cwece_ts_split", "ece_a_ts_split"

# Rows in which the paper prints only one of several equal bests in bold: numbers that
# are equal as printed need not be equal.
ONE_OF_EQUALS = {
    (ACC, "tiny-imagenet", "vit_small", "none", "ece"): {"aurc", "au"},
    (ADAPTIVE, "cifar10", "resnet50", "none", "accuracy"): {"xe", "kde_xe"},
    (ADAPTIVE, "cifar10", "resnet50", "ts", "accuracy"): {"xe", "kde_xe"},
    (ADAPTIVE, "cifar10", "resnet110", "metaacc", "adaptive_ece"): {"xe", "kde_xe"},
    (ADAPTIVE, "cifar10", "preresnet56", "none", "accuracy"): {"inv_focal", "kde_xe"},
    (ADAPTIVE, "cifar10", "preresnet56", "ts", "accuracy"): {"inv_focal", "kde_xe"},
    (ADAPTIVE, "tiny-imagenet", "swin_tiny", "ts", "adaptive_ece"): {"xe", "au"},
}

# Accuracies of AURC that the paper prints differently in two tables.
TWO_ACCURACIES = {
    ("cifar100", "resnet50"): (75.40, 74.5),
    ("tiny-imagenet", "vit_small"): (83.10, 82.7),
    ("tiny-imagenet", "swin_tiny"): (82.35, 82.0),
}


def test_every_number_of_the_tables_is_there():
    assert len(published.pairs()) == 10
    assert {model for _, model in published.pairs()} < set(models.NAMES)
    lines = {
        ACC: [("none", "accuracy"), ("none", "ece")],
        CW: [("none", "cwece"), ("ts", "cwece"), ("ts", "temperature")],
        ADAPTIVE: [
            (posthoc, metric)
            for posthoc in ("none", "ts", "metamis", "metaacc")
            for metric in ("adaptive_ece", "accuracy")
        ]
        + [("ts", "temperature")],
    }
    expected = {
        (table, *pair, *line, loss)
        for table, rows in lines.items()
        for pair in published.pairs()
        for line in rows
        for loss in losses.NAMES
    }
    assert len(expected) == 980
    assert set(FIGURES) == expected


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_bold_is_the_best_of_its_row(row):
    figures = ROWS[row]
    bold = {loss for loss, figure in figures.items() if figure.bold}
    if row[-1] == "temperature":
        assert bold == set()
        return
    best = max if row[-1] == "accuracy" else min
    value = best(figure.value for figure in figures.values())
    bests = {loss for loss, figure in figures.items() if figure.value == value}
    assert len(bold) == 1
    assert bold <= bests
    assert (bests if len(bests) > 1 else None) == ONE_OF_EQUALS.get(row)


def test_numbers_are_in_a_plausible_range():
    bounds = {
        "accuracy": (30, 97),
        "ece": (0.9, 11),
        "adaptive_ece": (0.3, 14),
        "cwece": (0.1, 1.3),
        "temperature": (0.7, 1.4),
    }
    for key, figure in FIGURES.items():
        low, high = bounds[key.metric]
        assert low <= figure.value <= high, key


def test_tables_agree_where_they_repeat_a_number():
    for key, figure in FIGURES.items():
        if key.metric == "temperature" and key.table == CW:
            assert figure == FIGURES[key._replace(table=ADAPTIVE)]
        if (key.table, key.posthoc, key.metric) != (ADAPTIVE, "none", "accuracy"):
            continue
        assert figure == FIGURES[key._replace(posthoc="ts")]
        full = FIGURES[key._replace(table=ACC)]
        pair = (key.dataset, key.model)
        if key.loss == "aurc" and pair in TWO_ACCURACIES:
            assert (full.value, figure.value) == TWO_ACCURACIES[pair]
        else:
            # 93.05 may have been 93.046.
            assert abs(full.value - figure.value) <= 0.05 + 1e-9, key


# Read in the paper, not in the file.
@pytest.mark.parametrize(
    ("key", "value", "bold"),
    [
        ((ACC, "cifar10", "resnet50", "none", "accuracy", "xe"), 94.51, True),
        ((ACC, "cifar10", "preresnet56", "none", "ece", "au"), 0.92, True),
        ((ACC, "cifar100", "wrn28_10", "none", "accuracy", "au"), 79.85, True),
        ((ACC, "cifar100", "resnet110", "none", "ece", "inv_focal"), 10.90, False),
        ((ACC, "tiny-imagenet", "swin_tiny", "none", "ece", "fl53"), 7.69, False),
        ((CW, "cifar10", "resnet110", "none", "cwece", "inv_focal"), 1.009, False),
        ((CW, "cifar10", "wrn28_10", "ts", "cwece", "au"), 0.340, True),
        ((CW, "cifar10", "preresnet56", "ts", "temperature", "fl53"), 0.7, False),
        ((CW, "cifar100", "resnet50", "ts", "cwece", "dual_focal"), 0.189, False),
        ((CW, "tiny-imagenet", "vit_small", "none", "cwece", "aurc"), 0.120, True),
        ((ADAPTIVE, "cifar10", "resnet50", "ts", "adaptive_ece", "fl53"), 1.71, False),
        ((ADAPTIVE, "cifar10", "wrn28_10", "metamis", "accuracy", "aurc"), 87.3, True),
        ((ADAPTIVE, "cifar10", "wrn28_10", "ts", "temperature", "au"), 1.3, False),
        (
            (ADAPTIVE, "cifar100", "resnet110", "metaacc", "adaptive_ece", "aurc"),
            13.50,
            False,
        ),
        (
            (ADAPTIVE, "cifar100", "wrn28_10", "metaacc", "accuracy", "dual_focal"),
            38.0,
            False,
        ),
        (
            (ADAPTIVE, "tiny-imagenet", "vit_small", "metaacc", "accuracy", "kde_xe"),
            81.3,
            False,
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_numbers_as_printed(key, value, bold):
    assert FIGURES[key] == (value, bold)


def test_reliability_diagrams_have_ten_bins_and_the_printed_ece():
    diagrams = published.diagrams()
    assert list(diagrams) == ["fl53", "inv_focal", "dual_focal", "kde_xe", "aurc", "au"]
    printed = [diagram.ece for diagram in diagrams.values()]
    assert printed == [5.83, 3.92, 1.92, 2.38, 2.98, 0.92]
    for diagram in diagrams.values():
        edges = [(bar.lower, bar.upper) for bar in diagram.bars]
        assert edges == [(m / 10, (m + 1) / 10) for m in range(10)]
        for bar in diagram.bars:
            assert bar.lower <= bar.confidence <= bar.upper
            assert 0 <= bar.accuracy <= 1
        gaps = [100 * abs(bar.accuracy - bar.confidence) for bar in diagram.bars]
        assert gaps[-1] * 0.5 < diagram.ece < max(gaps)
    # FL-53 is underconfident, inverse focal loss overconfident.
    assert all(bar.accuracy > bar.confidence for bar in diagrams["fl53"].bars[3:])
    assert all(bar.accuracy < bar.confidence for bar in diagrams["inv_focal"].bars[2:])
    assert diagrams["au"].bars[8] == (0.8, 0.9, 0.809433962264151, 0.856447905751894)
    assert diagrams["aurc"].bars[1] == (0.1, 0.2, 0.0, 0.194341078400612)
