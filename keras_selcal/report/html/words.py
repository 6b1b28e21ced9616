"""What a report says, in plain words that follow from its figures."""

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_selcal import functional
from keras_selcal._core.binning import uniform_bins
from keras_selcal._core.samples import Array, Samples
from keras_selcal._core.segments import Segments
from keras_selcal.report.html.numbers import (
    count,
    percent,
    percent_range,
    percents,
    points,
    round_percent,
)

if TYPE_CHECKING:
    from keras_selcal.report.report import CalibrationReport, Interval

# Draws of right and wrong answers that an honest model would give, and the entries
# that are held at a time.
_MOST_DRAWS = 1000
_MOST_ENTRIES = 2**20

# A gap of confidence to accuracy below the first is called little, from the second on
# far. One direction is the model's if it makes up so much of its error.
_LITTLE, _FAR = 0.02, 0.1
_ONE_SIDED = 0.75
# From this failure AUROC on, a model is said to know its mistakes, mostly.
_KNOWS = 0.9


class Metric(NamedTuple):
    """A metric's name, what it means, and whether it is a share."""

    name: str
    meaning: str
    share: bool = False


def metric_words(report: "CalibrationReport") -> dict[str, Metric]:
    """Returns what each metric of a report is, in a sentence."""
    bins = report.num_bins
    words = {
        "accuracy": Metric("Accuracy", "How often the model is right.", True),
        "nll": Metric(
            "Negative log-likelihood",
            "How much the truth surprises the model: 0 if it was certain of every "
            "right answer, large where it was sure and wrong.",
        ),
        "brier": Metric(
            "Brier score",
            "Squared distance of its probabilities from the truth: from 0, certain and "
            "right, to 2, certain and wrong.",
        ),
        "ece": Metric(
            "Expected calibration error (ECE)",
            "How far what it says and how often it is right lie apart, on average over "
            f"{bins} equal steps of confidence: 0.05 is 5 points.",
        ),
        "adaptive_ece": Metric(
            "Adaptive ECE",
            f"The same over {bins} steps that hold equally many cases.",
        ),
        "cwece": Metric(
            "Class-wise calibration error",
            "The same for the probability of every class, not only the answer's; mean "
            "over classes.",
        ),
        "smooth_ece": Metric(
            "Smooth ECE", "The same without steps, so that no edge of one matters."
        ),
        "aurc": Metric(
            "Area under the risk-coverage curve (AURC)",
            "Share of wrong answers among the surest, averaged over how many are "
            "answered: low if mistakes are rare, and made when unsure.",
        ),
        "excess_aurc": Metric(
            "Excess AURC",
            "How much of it a better order by confidence could save: 0 if every "
            "mistake is less sure than every right answer.",
        ),
        "augrc": Metric(
            "Area under the generalised risk-coverage curve (AUGRC)",
            "Share of all cases that are answered and wrong, averaged over how many "
            "are answered.",
        ),
        "failure_auroc": Metric(
            "Failure AUROC",
            "The chance that a right answer is surer than a wrong one: 1 is always, "
            "0.5 no better than a coin.",
        ),
    }
    for coverage in report.coverages:
        share = round_percent(coverage)
        words[f"risk_at_coverage_{coverage:g}"] = Metric(
            f"Risk at coverage {share}",
            f"How often it is wrong if it answers only the surest {share}.",
            True,
        )
    for risk in report.risks:
        words[f"coverage_at_risk_{risk:g}"] = Metric(
            f"Coverage at risk {round_percent(risk)}",
            "The largest share of cases that it can answer with at most "
            f"{round_percent(risk)} of the answers wrong.",
            True,
        )
    return words


class Card(NamedTuple):
    """One of the questions at a glance: the short answer, and the long one."""

    question: str
    answer: str
    words: str


def glance(report: "CalibrationReport") -> list[Card]:
    """Returns accuracy, calibration and selection of a model in words."""
    return [_right(report), _honest(report), _abstain(report)]


def _between(interval: "Interval", level: float) -> str:
    """Returns an interval of shares in brackets, or nothing where there is none."""
    if math.isnan(interval.low) or interval.low == interval.high:
        return ""
    ends = percent_range(interval.low, interval.high)
    return f" ({round_percent(level)} interval: {ends})"


def _right(report: "CalibrationReport") -> Card:
    accuracy, n = report["accuracy"], report.num_samples
    shown = percent(accuracy.value)
    cases = "the one case" if n == 1 else f"{count(n)} cases"
    if accuracy.value == 1:
        words = f"The model is right in {'' if n == 1 else 'all '}{cases}."
        # n right answers at a rate q of mistakes have probability (1 − q)ⁿ.
        level = report.confidence_level
        most = percent(1 - (1 - level) ** (1 / n))
        words += f" With {round_percent(level)} confidence, it is wrong in at most "
        words += f"{most} of cases like these."
    elif accuracy.value == 0:
        words = f"The model is wrong in {'' if n == 1 else 'all '}{cases}."
    else:
        words = f"The model is right in {shown} of {cases}"
        words += _between(accuracy, report.confidence_level) + "."
    return Card("How often is it right?", shown, words)


def wilson(share: Array, size: Array, level: float) -> tuple[Array, Array]:
    """Returns Wilson's interval of shares seen in `size` cases each.

    Unlike a bootstrap's, it has a length where all cases are right, or all wrong.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    spread = share * (1 - share) / size + (z / (2 * size)) ** 2
    half = z * np.sqrt(np.maximum(spread, 0.0)) / (1 + z * z / size)
    return np.clip(middle - half, 0.0, 1.0), np.clip(middle + half, 0.0, 1.0)


class Bins(NamedTuple):
    """The bins of confidence that hold samples, in rising order.

    Attributes:
        left, right: their ends.
        confidence, accuracy: means in the bin.
        low, high: interval of the accuracy.
        number: samples; with weights, the share of the weight, times n.
    """

    left: Array
    right: Array
    confidence: Array
    accuracy: Array
    low: Array
    high: Array
    number: Array


def reliability_bins(report: "CalibrationReport") -> Bins:
    """Returns confidence and accuracy in the bins of the report's ECE."""
    samples = report._samples
    curve = functional.reliability_curve(
        samples.labels,
        samples.y_pred,
        num_bins=report.num_bins,
        from_logits=samples.from_logits,
        sample_weight=samples.weight,
    )
    full = curve.share > 0
    by_bin = Segments.of(uniform_bins(samples.confidence, report.num_bins))
    # Unequal weights tell less than as many equal ones.
    size = by_bin.sums(samples.counts) ** 2 / by_bin.sums(samples.counts**2)
    accuracy = curve.accuracy[full]
    low, high = wilson(accuracy, size, report.confidence_level)
    return Bins(
        curve.edges[:-1][full],
        curve.edges[1:][full],
        curve.confidence[full],
        accuracy,
        low,
        high,
        curve.share[full] * samples.n,
    )


def chance_ece(samples: Samples, num_bins: int, level: float, seed: int) -> float:
    """Returns the ECE that chance gives an honest model up to, at a level.

    A case that it calls p % sure is drawn as right with probability p, and the ECE
    of many such draws is ranked: resampling of consistency (Bröcker & Smith 2007).
    """
    rng = np.random.default_rng(seed)
    p = np.clip(samples.confidence.astype("float64"), 0.0, 1.0)
    by_bin = Segments.of(uniform_bins(samples.confidence, num_bins))
    counts = samples.counts
    draws = int(np.clip(20 * _MOST_ENTRIES // samples.n, 100, _MOST_DRAWS))
    step = max(1, _MOST_ENTRIES // samples.n)
    errors = []
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        gap = counts * (p - (rng.random((rows, samples.n)) < p))
        errors.append(np.abs(by_bin.sums(gap)).sum(axis=-1) / counts.sum())
    return float(np.quantile(np.concatenate(errors), level, method="higher"))


def _honest(report: "CalibrationReport") -> Card:
    question = "Is its confidence honest?"
    samples, error = report._samples, report["ece"].value
    level = report.confidence_level
    chance = chance_ece(samples, report.num_bins, level, report.seed)
    bins = reliability_bins(report)
    said = samples.mean(samples.confidence)
    says, right = percents(said, report["accuracy"].value)
    average = f"On average it says {says} and is right in {right}."
    error_points = points(error)
    if error <= chance:
        measured = (
            f" The gap between the two, {error_points} (ECE), is no larger than chance "
            f"gives an honest model on so many cases: up to {points(chance)}."
        )
        if chance >= _FAR:
            return Card(question, "Too few cases to tell", average + measured)
        return Card(question, "Yes, as far as can be seen", average + measured)
    gap = bins.number * (bins.confidence - bins.accuracy)
    over, under = np.sum(gap[gap > 0]), -np.sum(gap[gap < 0])
    measured = (
        f" The gap is {error_points} (ECE); chance alone would give an honest model at "
        f"most {points(chance)}."
    )
    # Where an interval leaves out what is said, one bin alone tells.
    telling = (bins.confidence < bins.low) | (bins.confidence > bins.high)
    examples = {}
    for sign in (1, -1):
        found = np.where(telling, sign * gap, 0.0)
        if found.max() > 0:
            examples[sign] = _example(bins, int(np.argmax(found)))
    both = len(examples) == 2 and max(over, under) < _ONE_SIDED * (over + under)
    if both:
        answer = "No: too sure in some cases, too modest in others"
        return Card(question, answer, " ".join(examples.values()) + measured)
    sign = 1 if over > under else -1
    if len(examples) == 1:
        (sign,) = examples
    degree = "a little " if error < _LITTLE else "far " if error >= _FAR else ""
    too = "too sure of itself" if sign > 0 else "too modest"
    told = examples.get(sign, average)
    return Card(question, f"No: it is {degree}{too}", told + measured)


def _example(bins: Bins, index: int) -> str:
    says, right = percents(float(bins.confidence[index]), float(bins.accuracy[index]))
    number = count(float(bins.number[index]))
    return f"When it says {says}, it is right in {right} (of {number} cases)."


def _abstain(report: "CalibrationReport") -> Card:
    question = "Does it know when it is wrong?"
    auroc, accuracy = report["failure_auroc"], report["accuracy"].value
    if math.isnan(report["aurc"].value):
        return Card(question, "–", "That cannot be told: a confidence is no number.")
    if accuracy == 1:
        return Card(question, "–", "It made no mistake here that it could know of.")
    if accuracy == 0:
        return Card(
            question, "–", "It was always wrong: leaving out cases cannot help."
        )
    low = auroc.value if math.isnan(auroc.low) else auroc.low
    if auroc.high < 0.5:
        answer = "No, rather the reverse"
    elif low <= 0.5:
        answer = "No sign of it"
    else:
        answer = "Mostly yes" if auroc.value >= _KNOWS else "In part"
    words = (
        "Of a right answer and a wrong one, it is surer of the right one in "
        f"{percent(auroc.value)} of cases. "
    )
    if report.coverages:
        coverage = min(report.coverages)
        risk = report[f"risk_at_coverage_{coverage:g}"].value
        words += (
            f"If it may leave the least sure {round_percent(1 - coverage)} unanswered, "
            f"{percent(risk)} of its answers are wrong instead of "
            f"{percent(1 - accuracy)}. "
        )
    kept = [risk for risk in report.risks if 0 < risk < 1 - accuracy]
    if kept:
        share = report[f"coverage_at_risk_{min(kept):g}"].value
        limit = f"With at most {round_percent(min(kept))} wrong"
        words += (
            f"{limit} it can answer {percent(share)} of the cases."
            if share > 0
            else f"{limit} it can answer none."
        )
    return Card(question, answer, words.strip())
