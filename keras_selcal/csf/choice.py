"""The choice of a confidence score on held-out data."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples, to_counts
from keras_selcal._resampling import resample_counts
from keras_selcal._segments import Segments
from keras_selcal._validation import refuse
from keras_selcal.csf.logits import MaxLogitPNorm, energy, max_logit
from keras_selcal.csf.names import get, name_of
from keras_selcal.csf.probabilities import doctor, gen, margin, msp, neg_entropy
from keras_selcal.csf.score import ConfidenceScore

_OF_PROBABILITIES = (margin, neg_entropy, doctor, gen)
_OF_LOGITS = (max_logit, energy, *(MaxLogitPNorm(p) for p in range(2, 9)))

# Another score than msp must gain in this share of the resamples, and the data must
# have this many errors: from looking at random splits of CIFAR-10, CIFAR-100, MNIST.
_LEAST_SHARE = 0.9
_FEWEST_ERRORS = 30


class Choice(NamedTuple):
    """The score that ranks best on held-out data, and by how much.

    Attributes:
        csf: the score; `msp` unless the gain of another one is certain enough.
        gain: AURC of `msp` minus the AURC of the best other score.
        interval: of `gain`, from the 2.5 % to the 97.5 % quantile of resamples.
        share: share of the resamples in which the gain is above 0.
        aurc: the AURC of each candidate, by its name.
        errors: number of errors that the candidates are compared by.
    """

    csf: ConfidenceScore
    gain: float
    interval: tuple[float, float]
    share: float
    aurc: dict[str, float]
    errors: int

    def __str__(self) -> str:
        low, high = (f"{1000 * end:.3g}" for end in self.interval)
        gain = f"{1000 * self.gain:.3g} (95 % interval {low} to {high})"
        if self.csf is msp:
            others = [name for name in self.aurc if name != "msp"]
            best = min(others, key=self.aurc.__getitem__, default="none")
            sure = "negative" if self.interval[1] < 0 else "unsure"
            return (
                f"msp: the gain of the best other score, {best}, is {sure}, with "
                f"{self.errors} errors: {gain} in AURC × 10³"
            )
        return f"{name_of(self.csf)}: AURC × 10³ is lower than with msp by {gain}"


def default_candidates(
    from_logits: bool, num_classes: int, events: bool
) -> list[ConfidenceScore]:
    """Returns the scores besides `msp` that are compared by default: those that mean
    something for such outputs (see `ConfidenceScore.flaw`).
    """
    scores = _OF_PROBABILITIES + (_OF_LOGITS if from_logits else ())
    return [score for score in scores if score.flaw(num_classes, events) is None]


def compare(
    logits: Any,
    labels: Any,
    *,
    candidates: Iterable[Any] | None = None,
    from_logits: bool = True,
    sample_weight: Any = None,
    bootstrap: int = 500,
    seed: int = 0,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> Choice:
    """Compares confidence scores by their AURC, and chooses one.

    The candidate of lowest AURC is chosen if its gain over `msp` is above 0 in 90 % of
    the resamples of the data (a paired bootstrap) and the data have at least 30 errors,
    and `msp` otherwise: a gain that the data cannot show is as likely a loss on new
    data.

    Args:
        logits: predictions of held-out data, (..., k), not those that the network was
            trained on.
        labels: class indices or distributions.
        candidates: scores besides `msp`, as `get` takes them. By default, all that the
            predictions allow, and MaxLogit with p-norm for p = 2, …, 8. Two classes
            leave out the p-norm, sigmoids all scores of logits.
        from_logits: whether `logits` holds logits. Without them only scores of
            probabilities are compared.
        sample_weight: of a shape that broadcasts to the samples'.
        bootstrap: number of resamples of the interval.
        seed: of the resamples.
        multi_label: whether `logits` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `logits`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        A `Choice`.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 300)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3))
    >>> compare(logits, labels).csf.__name__
    'msp'

    References:
    - Cattelan & Silva, [How to Fix a Broken Confidence
      Estimator](https://arxiv.org/abs/2305.15508)
    """
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    samples = Samples.of(
        labels, logits, outputs, sample_weight, names=("labels", "logits")
    )
    if np.isnan(samples.y_pred).any():
        refuse("logits", "NaN", "predictions without NaN")
    if candidates is None:
        candidates = default_candidates(
            from_logits, samples.num_classes, samples.events
        )
    parts = samples.split_labels()
    found = (get(score, from_logits=from_logits) for score in candidates)
    return best_of(
        [msp, *(score for score in found if score is not msp)],
        lambda score: [part.ranks(score) for part in parts],
        [1.0 - part.correct for part in parts],
        [part.weight for part in parts],
        bootstrap,
        seed,
    )


def best_of(
    scores: Sequence[ConfidenceScore],
    ranks: Callable[[ConfidenceScore], list[Array]],
    losses: list[Array],
    weights: list[Array | None],
    bootstrap: int = 500,
    seed: int = 0,
) -> Choice:
    """Returns the choice among scores, the first of which is `msp`.

    Args:
        scores: the candidates.
        ranks: maps a score to its values for the samples, of each label.
        losses: 0/1 losses of the samples, of each label.
        weights: weights of the samples or None, of each label.
        bootstrap: number of resamples of the interval.
        seed: of the resamples.
    """
    # Correct predictions that are neighbours in rank add no loss: one group does.
    groups = {
        name_of(score): [
            Segments.of(of_label).merged(loss == 0)
            for of_label, loss in zip(ranks(score), losses, strict=True)
        ]
        for score in scores
    }

    def aurc(name: str, label: int, drawn: Array) -> Array:
        weight, loss = weights[label], losses[label]
        count = to_counts(drawn * (1.0 if weight is None else weight), len(loss))
        sums = groups[name][label].sums
        return np.asarray(Ranking(sums(count), sums(count * loss), np).aurc())

    labels = range(len(losses))
    once = [np.ones((1, len(loss))) for loss in losses]
    values = {
        name: float(np.mean([aurc(name, label, once[label]) for label in labels]))
        for name in groups
    }
    # The gain of the best other score, even if it is negative.
    best = min(scores[1:], key=lambda score: values[name_of(score)], default=msp)

    def gains(label: int) -> Array:
        parts = [
            aurc("msp", label, drawn) - aurc(name_of(best), label, drawn)
            for drawn in resample_counts(len(losses[label]), bootstrap, seed)
        ]
        return np.concatenate(parts)

    resampled = np.mean([gains(label) for label in labels], axis=0)
    low, high = (float(end) for end in np.quantile(resampled, (0.025, 0.975)))
    gain, share = values["msp"] - values[name_of(best)], (resampled > 0).mean()
    errors = int(sum(loss.sum() for loss in losses))
    sure = gain > 0 and share >= _LEAST_SHARE and errors >= _FEWEST_ERRORS
    chosen = best if sure else msp
    return Choice(chosen, gain, (low, high), float(share), values, errors)


def choose(
    logits: Any,
    labels: Any,
    *,
    from_logits: bool = True,
    sample_weight: Any = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> Any:
    """Chooses the confidence score that ranks best on held-out data, for `csf=`.

    `compare` also returns by how much it is better.

    Args:
        logits: predictions of held-out data, (..., k).
        labels: class indices or distributions.
        from_logits: whether `logits` holds logits instead of probabilities.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `logits` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `logits`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The name of a score, or a `MaxLogitPNorm` with the best p.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 300)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3))
    >>> choose(logits, labels)
    'msp'
    """
    chosen = compare(
        logits,
        labels,
        from_logits=from_logits,
        sample_weight=sample_weight,
        multi_label=multi_label,
        ignore_class=ignore_class,
        axis=axis,
        decision_threshold=decision_threshold,
    ).csf
    return chosen if isinstance(chosen, MaxLogitPNorm) else chosen.__name__
