"""The checks of the paper's claims, for `python -m recipes claims`.

A check is a function whose docstring is the claim. It computes figures, and a verdict
from them by the rule that it states.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_selcal import AULoss, AURCLoss, KDECrossentropy, functional
from keras_selcal._backend.ops import gradient
from recipes import losses
from recipes.evaluation import METRICS, evaluate
from recipes.paper import posthoc, published
from recipes.paper.released import ReleasedAULoss
from recipes.runs import Predictions, Run
from recipes.tables import Table, cell_of

HOLDS, CONDITION = "holds", "holds under a condition"
FAILS, UNTESTED = "does not hold", "could not be tested here"


def verdict_of(*, everywhere: bool, somewhere: bool) -> str:
    """Returns the verdict on a claim that is true in every, some or no case."""
    return HOLDS if everywhere else CONDITION if somewhere else FAILS


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        verdict: one of the four, or `"undecided"`.
        rule: how the figures decide it.
        text: what was found, in sentences.
        table: the figures, if they are many.
        figure: a matplotlib figure, or None.
    """

    verdict: str
    rule: str
    text: str
    table: Table | None = None
    figure: Any = None


# A relative difference that rounding explains.
_EQUAL = 1e-4


# --- Formulas -----------------------------------------------------------------------


def focal_gradient(runs: Sequence[Run]) -> Finding:
    """App. gradient: the gradients of focal and inverse focal loss are as printed."""
    p, gamma, step = np.linspace(0.01, 0.99, 99), 2.0, 1e-6

    def slope(sign: float) -> Any:
        def loss(p: Any) -> Any:
            return -((1 + sign * p) ** gamma) * np.log(p)

        return (loss(p + step) - loss(p - step)) / (2 * step)

    def printed(sign: float) -> Any:
        weight = 1 + sign * p
        return gamma * weight ** (gamma - 1) * np.log(p) - weight**gamma / p

    focal = np.abs(printed(-1) / slope(-1) - 1).max()
    inverse = slope(1)[49], printed(1)[49]
    wrong = np.abs(printed(1) / slope(1) - 1).max()
    turn = np.min((1 + p) / (-p * np.log(p)))
    right = [error < _EQUAL for error in (focal, wrong)]
    return Finding(
        verdict_of(everywhere=all(right), somewhere=False),
        "it holds if both printed gradients are within 10⁻⁴, relatively, of the "
        "differences of the losses for p from 0.01 to 0.99 and γ = 2.",
        f"For focal loss the last line is right (relative difference {focal:.0e} from "
        "differences of the loss, γ = 2), though the line above it has a wrong sign. "
        "For inverse focal loss the printed gradient has the wrong sign on its log "
        f"term: at p = 0.5 and γ = 2 it is {inverse[1]:.3f} instead of "
        f"{inverse[0]:.3f}. As printed it is negative for every γ; the true one is "
        f"positive for some p if γ > {turn:.3f} (the text says 3.5, the appendix 4).",
    )


def beta(runs: Sequence[Run]) -> Finding:
    """Prop. beta: β has the closed form −C ln(1 − G(min(s, τ))), C = 1/G(τ)."""
    rows, gaps = [], []
    for n in (100, 1000, 4000):
        s = np.sort(np.random.default_rng(0).beta(5, 2, n))
        low = int(0.75 * n)
        # The definition: samples below τ set the thresholds.
        at_least = (n - np.arange(low)) / n
        cumulative = np.cumsum(1 / at_least) / low
        defined = cumulative[np.minimum(np.arange(n), low - 1)]
        share = np.minimum(np.arange(1, n + 1), low) / n
        closed = -np.log1p(-share) / (low / n)
        gaps.append(float(np.abs(defined / closed - 1).max()))
        rows.append([str(n), f"{gaps[-1]:.4f}"])
    y = (s < np.random.default_rng(1).random(n)).astype(int)
    y_pred = np.stack([s, 1 - s], -1)[s >= 0.5]
    wrong = y[s >= 0.5]
    number = functional.au(wrong, y_pred, quantile=0.75)
    m = len(wrong)
    risks = wrong[::-1].cumsum()[::-1] / np.arange(m, 0, -1)
    return Finding(
        verdict_of(
            everywhere=gaps[0] < _EQUAL, somewhere=gaps[0] > 5 * gaps[1] > 10 * gaps[2]
        ),
        "it holds if the closed form equals the definition for any n, and under the "
        "condition of a large n if the difference falls as 1/n does.",
        "The closed form is that of a continuous distribution: for n samples, it "
        "differs from the definition by a term of order 1/n. `functional.au` computes "
        f"the definition: {number:.4f} on {m} samples, and the mean of the selective "
        f"risks below τ is {risks[: int(0.75 * (m - 1)) + 1].mean():.4f}. The factor "
        "C, which Eq. gradientAU leaves out of ∇β, only scales the loss.",
        Table(["n", "largest relative difference"], rows),
    )


def ece_bound(runs: Sequence[Run]) -> Finding:
    """Prop. ece-lb: ECE(f) ≥ sup over binnings of the binned estimator of ECE."""
    from recipes.paper.picture import axes

    n = 10_000
    bins = [1, 2, 5, 10, 15, 30, 100, 300, 1000, 3000, n]
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, n)
    labels = (rng.random(n) > p).astype(int)
    calibrated = np.stack([p, 1 - p], -1)
    sharp = np.stack([p**3, (1 - p) ** 3], -1)
    sharp /= sharp.sum(-1, keepdims=True)
    true = np.abs(sharp.max(-1) - p).mean()  # the accuracy at confidence q(p) is p
    names = {"calibrated": (calibrated, 0.0), "overconfident": (sharp, true)}
    found = {
        name: [100 * functional.ece(labels, q, num_bins=m) for m in bins]
        for name, (q, _) in names.items()
    }
    ((ax,),) = axes(1, 1, 6.0, 4.0)
    for (name, values), colour in zip(
        found.items(), ("#0072B2", "#D55E00"), strict=True
    ):
        ax.plot(bins, values, "o-", color=colour, label=f"{name}, binned estimate")
        ax.axhline(
            100 * names[name][1], color=colour, ls="--", label=f"{name}, true ECE"
        )
    ax.set_xscale("log")
    ax.set_xlabel("number of bins")
    ax.set_ylabel("ECE × 10²")
    ax.legend(fontsize="small")
    rows = [
        [str(m), *(f"{found[name][i]:.2f}" for name in names)]
        for i, m in enumerate(bins)
    ]
    rows.append(["true ECE", *(f"{100 * value:.2f}" for _, value in names.values())])
    above = [value > 100 * names[name][1] for name in names for value in found[name]]
    return Finding(
        # Kumar et al. prove it for the population.
        verdict_of(everywhere=not any(above), somewhere=True),
        "proven for the population; it holds without a condition if no binned estimate "
        "of a sample exceeds the true ECE.",
        "It holds for the binned ECE of the population, as Kumar et al. prove it. It "
        f"does not hold for the estimator of a sample that the paper defines: on {n} "
        "samples of a perfectly calibrated model, every binning gives more than the "
        "true ECE of 0, and a bin for each sample gives the mean of |confidence − "
        "correct|.",
        Table(["bins", *names], rows),
        ax.figure,
    )


def selective_fallback(runs: Sequence[Run]) -> Finding:
    """Prop. constructece: the selective fallback f' has no larger ECE than f."""
    rng = np.random.default_rng(0)
    n, k = 2000, 10
    rows: list[list[str]] = []
    lower: list[tuple[Any, Any]] = []
    for title, shift in (("labels of all classes", None), ("errors of class 0", 0)):
        wrong = np.arange(n) < n // 4
        labels = rng.integers(0, k, n)
        if shift is not None:
            labels[wrong] = shift
        predicted = np.where(
            wrong, (labels + 1 + rng.integers(0, k - 1, n)) % k, labels
        )
        top = np.where(wrong, 0.3, 0.95)
        p = np.repeat((1 - top)[:, None] / (k - 1), k, 1)
        p[np.arange(n), predicted] = top
        fallback = functional.selective_fallback(labels, p, 0.5)
        accepted = np.where(wrong, 1 / k, 1.0)  # a tie is right in 1/k of the cases
        guessed = abs(accepted[wrong].mean() - 1 / k)
        found = [100 * functional.ece(labels, q) for q in (p, fallback)]
        lower.append((found[1] <= found[0], 100 * guessed <= found[0]))
        rows.append([title, *(f"{value:.1f}" for value in (*found, 100 * guessed))])
    return Finding(
        verdict_of(
            everywhere=all(map(all, lower)),
            somewhere=all(guesses for _, guesses in lower),
        ),
        "it holds if f' has no larger ECE for either set of labels with an argmax, and "
        "under a condition if it has none when ties count as guesses.",
        "The score must separate correct from wrong predictions, f' takes the labels, "
        "and the uniform prediction must count as right in 1/k of the cases. With an "
        "argmax that takes the first of equal classes, errors that all belong to that "
        "class become correct at confidence 1/k, and ECE rises.",
        Table(["", "ECE of f", "ECE of f', argmax", "ECE of f', guesses"], rows),
    )


# --- The paper's own figures --------------------------------------------------------


def over_and_underconfidence(runs: Sequence[Run]) -> Finding:
    """Section 5: focal loss is overconfident; inverse focal and AURC underconfident."""
    claimed = {"fl53": "over", "inv_focal": "under", "aurc": "under"}
    rows, right = [], []
    for loss, diagram in published.diagrams().items():
        drawn = [b for b in diagram.bars if b.accuracy != b.confidence]
        above = sum(bar.confidence > bar.accuracy for bar in drawn)
        kind = "over" if 2 * above > len(drawn) else "under"
        if loss in claimed:
            right.append(kind == claimed[loss])
            title = losses.TITLES[loss]
            rows.append([title, f"{above} of {len(drawn)}", f"{kind}confident"])
    return Finding(
        verdict_of(everywhere=all(right), somewhere=any(right)),
        "a loss is overconfident if confidence is above accuracy in most of the bars "
        "drawn; it holds if this agrees with the text for all three losses.",
        "The two words are swapped: the bars of Fig. rc_ece, to which the sentence "
        "refers, show the opposite.",
        Table(["", "bins with confidence above accuracy", "the bars show"], rows),
    )


def figure_and_table(runs: Sequence[Run]) -> Finding:
    """Fig. rc_ece shows the models of Table combined_acc_ece."""
    place = ("cifar10", "preresnet56", "none")
    rows, apart = [], []
    for loss, diagram in published.diagrams().items():
        cells = [
            published.figures()[published.Key(table, *place, metric, loss)]
            for table, metric in (
                ("combined_acc_ece", "ece"),
                ("ece_a_ts_split", "adaptive_ece"),
            )
        ]
        numbers = (diagram.ece, *(cell.value for cell in cells))
        apart.append(abs(diagram.ece - cells[0].value))
        rows.append([losses.TITLES[loss], *(f"{value:.2f}" for value in numbers)])
    return Finding(
        verdict_of(everywhere=max(apart) < 0.5, somewhere=False),
        "it holds if every ECE of the figure is within half a point of the table's; "
        "other bins explain such differences.",
        "The ECE printed in the diagram of AURC is 2.98, that of the table 1.75 (and "
        "its adaptive ECE 2.56). The bins are 10 in the figure and not stated in the "
        "table, which explains smaller differences.",
        Table(
            ["PreResNet56 on CIFAR-10", "figure", "ECE, table", "adaptive ECE"], rows
        ),
    )


def au_ordering(runs: Sequence[Run]) -> Finding:
    """Section 5: AU has a lower ECE than the other losses, in most cases the lowest."""
    from recipes.experiment import plan, verdicts
    from recipes.experiment.results import SCALINGS, read

    best = sum(
        figure.bold
        for key, figure in published.figures().items()
        if key[0] == "combined_acc_ece" and key.metric == "ece" and key.loss == "au"
    )
    results = read()
    found = {
        (cell, claim): verdicts.verdict(results, cell, claim)
        for bed in plan.BEDS
        for checkpoint in verdicts.CHECKPOINTS
        for scaling in SCALINGS
        for cell in [verdicts.Cell(bed, checkpoint, scaling)]
        for claim in verdicts.CLAIMS
    }
    scalings = {"none": "before scaling", "ts": "after TS"}
    rows = [
        [
            plan.BEDS[bed].title,
            f"{checkpoint} epoch, {title}",
            *(
                found[verdicts.Cell(bed, checkpoint, scaling), claim]
                for claim in verdicts.CLAIMS
            ),
        ]
        for bed in plan.BEDS
        for checkpoint in verdicts.CHECKPOINTS
        for scaling, title in scalings.items()
    ]
    return Finding(
        verdicts.ordering(results),
        "that of [EXPERIMENT.md](experiment/EXPERIMENT.md), which was written before "
        "its figures: paired differences over at least three seeds, at the epoch with "
        "the lowest validation loss, before and after temperature scaling.",
        f"In the paper's table AU has the lowest ECE in {best} of 10 rows. "
        f"{verdicts.answer(results)} The table gives the verdicts on the paper's AU, "
        "in two readings (w = 1 at ν = 0.76, and the public code), on the beds of the "
        "experiment. Two earlier studies are no "
        "test of the claim: they measure the last epoch of small networks whose "
        "hyperparameters were not tuned, with constant weights. The first had the "
        "paper's pattern: ECE 7.03 with cross-entropy, 5.97 with AU and 3.22 with w "
        "rising to 0.3, at a loss of 2.5 and 2.8 points of accuracy, on a CNN that "
        "classifies 62 % of CIFAR-10. After 60 instead of 20 epochs little of the gain "
        "was left (19.05, 18.65 and 16.50). In [STUDY.md](STUDY.md), AU has a lower "
        "ECE than cross-entropy at the last epoch on 3 of 8 beds.",
        Table(["bed", "measured at", *verdicts.CLAIMS], rows),
    )


def table_a(runs: Sequence[Run]) -> Finding:
    """A comment in the source: the paper's Table A is fitted on training images."""
    from recipes.paper import authors

    printed = {"metamis": ("metamis", "accuracy"), "temperature": ("ts", "temperature")}
    place = ("ece_a_ts_split", "cifar10", "resnet50")
    rows, nearer = [], {name: [] for name in printed}  # type: ignore[var-annotated]
    found = authors.read()
    for loss in authors.LOSSES:
        train, half = (row for row in found if row["loss"] == loss)
        line = [losses.TITLES[loss]]
        for name, key in printed.items():
            value = published.figures()[published.Key(*place, *key, loss)].value
            nearer[name].append(abs(value - train[name]) < abs(value - half[name]))
            line += [f"{n:.1f}" for n in (train[name], half[name], value)]
        rows.append(line)
    return Finding(
        verdict_of(
            everywhere=all(map(all, nearer.values())),
            somewhere=any(map(all, nearer.values())),
        ),
        "a calibrator was fitted on training images if, for each of three losses, the "
        "printed figure is nearer to the one found with training images than with half "
        "of the test images. The claim holds if both calibrators were, and under a "
        "condition if one was.",
        "Meta-Cal was fitted on training images and T was not. The logits are the "
        "authors' own: CIFAR-10 ResNet-50, 50,000 training and 10,000 test images, "
        "from https://github.com/han678/CalibWeightedRisk, commit cb661b4. They are of "
        "older runs than those of the tables, so that figures agree only roughly. "
        "`--fit-on paper` fits T on validation images and Meta-Cal on training images.",
        Table(
            [
                "ResNet-50, CIFAR-10",
                "MetaMis accuracy, fitted on training images",
                "on half of the test images",
                "printed",
                "T, fitted on training images",
                "on half of the test images",
                "printed",
            ],
            rows,
        ),
    )


def matrix(runs: Sequence[Run]) -> Finding:
    """Tables 1, 2 and A: the 980 numbers."""
    return Finding(
        UNTESTED,
        "it is tested by runs of the paper's networks and epochs, of which there are "
        "none here.",
        "They are 210 trainings on GPUs. `python -m recipes reproduce --estimate` "
        "times a step of each network and prints the hours; without `--estimate` it "
        "trains them.",
    )


# --- Networks -----------------------------------------------------------------------


# Images that a threshold of MetaMis needs, and a cost that is large, in points.
_ENOUGH_TO_FIT, _MUCH = 1000, 10.0


def meta_cal(runs: Sequence[Run]) -> Finding:
    """Appendix: Meta-Cal costs accuracy, more than 10 points in some cases."""
    rows, costs = [], {True: [0.0], False: [0.0]}
    for run in runs:
        config, test = run.config(), run.predictions("test")
        even, odd = (
            Predictions(test.logits[half::2], test.labels[half::2]) for half in (0, 1)
        )
        splits = {"training images": (run.predictions("train"), test)}
        if config["settings"]["epochs"]:  # else the weights have seen these images
            splits["validation images"] = (run.predictions("val"), test)
        splits["half of the test images"] = (even, odd)
        for split, (fitted, tested) in splits.items():
            target = posthoc.ACCURACY.get(config["dataset"])
            found, _ = posthoc.posthoc_values(fitted, tested, target)
            names = ("none", *posthoc.TITLES)
            cells = [found.get((name, "accuracy"), float("nan")) for name in names]
            rows.append([run.name, split, *(f"{v:.1f}" for v in cells)])
            if len(fitted.labels) >= _ENOUGH_TO_FIT:
                costs["training" in split].append(cells[0] - cells[2])
    return Finding(
        verdict_of(
            everywhere=max(costs[False]) > _MUCH, somewhere=max(costs[True]) > _MUCH
        ),
        "it holds if MetaMis, fitted on at least 1,000 images that a network has not "
        "seen, costs some network more than 10 points, and under a condition if only "
        "fitted on training images.",
        "It depends on the split on which Meta-Cal is fitted. A comment in the paper's "
        "source names the training set, and so do the arguments of the public code "
        "(`posthoc/utils.py` of https://github.com/han678/CalibWeightedRisk, commit "
        "b324335). A network is far more certain there: the entropy above which "
        "MetaMis rejects is then too low for new images, and it rejects far more than "
        "the 5 % of the correct predictions that it should. Fitted on training images, "
        "MetaMis costs ResNet-56 more than 10 points on CIFAR-10 (the paper prints "
        "accuracies of 82.5 to 89.3 after it); fitted on images that the network has "
        "not seen, it costs about 4. MetaAcc, with the paper's target of 0.97, shows "
        "the same. On digits, of which a fifth of the labels is wrong, it has no "
        "target, and a tenth of the 160 validation images is too few for the threshold "
        "of MetaMis.",
        Table(["run", "fitted on", "accuracy", *posthoc.TITLES.values()], rows),
    )


def released(runs: Sequence[Run]) -> Finding:
    """The losses are those of the public code."""
    rng = np.random.default_rng(0)
    n, k = 128, 10
    labels = rng.integers(0, k, n)
    z = (2 * rng.normal(size=(n, k)) + 2 * np.eye(k)[labels]).astype("float32")
    xe = losses.build("xe")
    options: Any = {"smoothing": 0.1, "quantile": 0.75, "from_logits": True}
    pairs = (
        ("AU, paper (w = 1)", "AU, public code"),
        ("AURC, paper and this library", "AURC, public code"),
        ("KDE-XE, paper and this library", "KDE-XE, public code"),
    )
    named: dict[str, Any] = {
        "XE": xe,
        "AU, paper (w = 1)": AULoss(weight_gradient=1.0, **options),
        "AU, public code": ReleasedAULoss(**options),
        "AU, public code, NegEntropy, ν = 0.05": losses.build(
            "au_released", {"csf": "neg_entropy", "quantile": 0.4, "smoothing": 0.05}
        ),
        "AU, this library (w = 0)": AULoss(**options),
        "AURC, paper and this library": AURCLoss(from_logits=True),
        "AURC, public code": losses.build("aurc_released"),
        "AURC, public code before 2025-10": losses.build(
            "aurc_released", {"strength": 0.9}
        ),
        "KDE-XE, paper and this library": KDECrossentropy(from_logits=True),
        "KDE-XE, public code": losses.build("kde_xe_released"),
    }
    slopes = {name: _slopes(loss, labels, z) for name, loss in named.items()}
    score, plain = z.max(-1), slopes["XE"]
    low = score <= np.quantile(score, 0.25)
    rows = []
    for name, slope in slopes.items():
        share = np.vdot(slope, plain) / np.linalg.norm(plain) ** 2
        cosine = np.vdot(slope, plain) / np.linalg.norm(slope) / np.linalg.norm(plain)
        sizes = (np.abs(slope[rows_]).sum(-1).mean() for rows_ in (low, ~low))
        rows.append(
            [name, f"{share:.3f}", f"{cosine:.3f}", *(f"{n * s:.3f}" for s in sizes)]
        )
    same = [
        np.allclose(slopes[one], slopes[other], rtol=_EQUAL, atol=1e-8)
        for one, other in pairs
    ]
    return Finding(
        verdict_of(everywhere=all(same), somewhere=any(same)),
        "a loss is the public one if the gradients of both are equal on one batch; it "
        "holds if this is so for AU, AURC and KDE-XE, and under a condition if for "
        "one.",
        "∂L/∂z on a batch of 128 samples of 10 classes. Share is the projection on the "
        "gradient of cross-entropy. The public AURC is the printed one since commit "
        "e429a75 (2025-10-07), with scores from softmax(softmax(z)), which changes a "
        "few ranks; before, it was (1 − a) ℓ + a α ℓ, with a from 0.2 to "
        "0.9 in the configurations of commit 85bd2e5 and 0.9 for CIFAR-10. The public "
        "KDE-XE trains as cross-entropy does, and the public AU with negative entropy, "
        "which the paper chose for ViT-Small, is 0.774 times cross-entropy, to the "
        "last digit. The repository is https://github.com/han678/CalibWeightedRisk.",
        Table(
            [
                "loss",
                "share of XE",
                "cosine with XE",
                "Σ|∂L/∂z| × n, 32 least confident",
                "others",
            ],
            rows,
        ),
    )


def released_training(runs: Sequence[Run]) -> Finding:
    """The public AU loss, the one of the paper and that of this library train alike."""
    names = ("accuracy", "ece", "cwece", "aurc", "nll")
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        config = run.config()
        title = losses.ALL_TITLES[config["loss"]]
        if (share := config["settings"]["loss"].get("weight_gradient")) is not None:
            title += f", w = {share:g}, ν = {config['settings']['loss']['smoothing']:g}"
        found.setdefault(title, []).append(evaluate(run, "test", names))
    rows = [
        [
            title,
            *(cell_of([s[n] for s in seeds]).text(METRICS[n].digits) for n in names),
        ]
        for title, seeds in found.items()
    ]
    accuracies = [
        np.mean([seed["accuracy"] for seed in seeds])
        for title, seeds in found.items()
        if title.startswith("AU")
    ]
    return Finding(
        verdict_of(everywhere=bool(np.ptp(accuracies) < 1), somewhere=False),
        "it holds if the mean accuracies of the three are within one point.",
        f"Mean ± standard deviation over {len(runs) // len(rows)} seeds of the "
        "small network on digits, with 20 % of the labels wrong, trained on "
        f"{config['backend']}: a sketch, no evidence on the paper's networks. w = 1 "
        "with ν = 0.1 is the paper as written.",
        Table(["", *(METRICS[name].heading for name in names)], rows),
    )


def _slopes(loss: Any, labels: Any, logits: Any) -> np.ndarray:
    z = ops.convert_to_tensor(logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the drag of AU as the paper writes it
        found, _ = gradient(lambda z: (loss(labels, z), ()), z)
    return np.asarray(ops.convert_to_numpy(found))
