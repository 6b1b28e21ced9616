"""The paper's figures: `python -m recipes figures RUNS -o FOLDER`.

Each is named after the paper's label. What needs formulas alone, or numbers that the
paper prints, is always drawn; what needs runs or the file of a search is drawn from
those that are given, under the label and their own name.
"""

import csv
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    csf,
    functional,
    plots,
)
from keras_selcal.functional.calibration import ReliabilityCurve
from keras_selcal.plots import _canvas as canvas
from recipes import data, losses, models, settings
from recipes.data.digits import LABEL_NOISE
from recipes.evaluation import evaluate
from recipes.losses import TITLES
from recipes.optimizers import L2SGD
from recipes.paper import published
from recipes.paper.groups import MODELS, Group, dataset_title, groups
from recipes.runs import CONFIG, Predictions, Run, RunError
from recipes.search_plots import search_curve, search_map
from recipes.training import learning_rate

# As many bins as in the paper's diagrams.
_BINS = 10
# When gradients are looked at, as shares of a training: early, while samples move.
_MOMENTS = (0.1, 0.3, 1.0)
# Of so many classes that a sample's confidence is p but for the smallest p.
_MANY = 1000
# From here on the gradient of inverse focal loss is positive in places: 1/W(1/e).
_TURN = 3.591


class Picture(NamedTuple):
    """A figure, and what is to be said of it.

    Attributes:
        name: of the file, the paper's label first.
        title: of its section.
        caption: what it shows, and from which data.
        figure: matplotlib's.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def write_figures(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    *,
    selections: Iterable[str | os.PathLike[str]] = (),
    formats: Iterable[str] = (),
    epochs: int | None = None,
) -> tuple[list[Path], list[str]]:
    """Writes every figure that can be drawn, and `figures.md`, which shows them.

    Args:
        runs: finished runs, of any data sets and models.
        folder: where to write; made if need be.
        selections: files that `python -m recipes select` has written.
        formats: `"pdf"` or `"svg"`, to be written beside PNG.
        epochs: of the training that is done for two of the figures. Defaults to those
            of the quickstart.

    Returns:
        The files, and notes on what is left out or was trained otherwise.
    """
    folder = Path(folder)
    notes: list[str] = []
    # Before the training: a file that cannot be read should not cost it.
    searches = [read_selection(path) for path in selections]
    folder.mkdir(parents=True, exist_ok=True)
    written, sections = [], ["# The paper's figures"]
    names: set[str] = set()
    for picture in _pictures(list(runs), searches, epochs, notes):
        name = picture.name
        while name in names:
            # Searches in folders of one name.
            name += "+"
        names.add(name)
        for kind in dict.fromkeys(("png", *formats)):
            path = folder / f"{name}.{kind}"
            picture.figure.savefig(path, dpi=120)
            written.append(path)
        shown = f"![{picture.title}]({name}.png)"
        sections += [f"## {picture.title}", shown, picture.caption]
    if notes:
        sections += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    page = folder / "figures.md"
    page.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [*written, page], notes


def _pictures(
    runs: list[Run], searches: "list[Selection]", epochs: int | None, notes: list[str]
) -> Iterator[Picture]:
    yield weight_and_loss()
    yield published_reliability()
    yield from reliability_of_runs(runs, notes)
    yield from influence_of_csf(runs, notes)
    yield gradient_comparison()
    yield dual_focal()
    course = train_in_view(epochs)
    yield gradients_over_epochs(course)
    yield published_gamma()
    yield from of_searches(searches, "gammaselection", notes)
    yield smoothing(course)
    yield published_region()
    yield from of_searches(searches, "nuselection", notes)


def _axes(rows: int, columns: int, width: float = 5.0, height: float = 4.0) -> Any:
    """Returns the axes of a new figure, (rows, columns)."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure.subplots(rows, columns, squeeze=False)


# --- Losses -------------------------------------------------------------------------


def weight_and_loss() -> Picture:
    """fig:weightandloss: weights and losses against p."""
    drawn = {
        "XE": FocalLoss(0),
        "FL, γ = 2": FocalLoss(2),
        "Inv. FL, γ = 2": InverseFocalLoss(2),
        "AURC": AURCLoss(),
        "AU": AULoss(),
    }
    ((left, right),) = _axes(1, 2)
    plots.loss_weights(drawn, _MANY, ax=left)
    # That of AURC goes to ∞ as p goes to 1, and would flatten the others.
    left.set_ylim(0, 5)
    plots.loss_values(drawn, _MANY, ax=right)
    right.set_ylim(0, 4)
    return Picture(
        "weightandloss",
        "Weights and losses against p",
        "fig:weightandloss. Left: the weight of a sample, normalised to a mean of 1 "
        "over p uniform on (0, 1). The paper normalises those of focal and inverse "
        "focal loss without telling how. Right: the loss with that weight. AURC and AU "
        "(κ = 0.75, ν = 0.1) weight by rank: here among confidences uniform on "
        f"[1/k, 1], with k = {_MANY}, so that the confidence is p itself from "
        f"p = {1 / _MANY:g} on. Computed from the formulas.",
        left.figure,
    )


def gradient_comparison() -> Picture:
    """fig:gradientcomparison: focal and inverse focal loss, for several γ."""
    ((left, right),) = _axes(1, 2)
    plots.loss_gradients(
        {f"γ = {gamma}": FocalLoss(gamma) for gamma in (0, 1, 2, 3, 5)},
        normalize=False,
        ax=left,
    )
    with warnings.catch_warnings():
        # Of positive gradients, which this is to show.
        warnings.simplefilter("ignore")
        inverse = {f"γ = {gamma}": InverseFocalLoss(gamma) for gamma in range(6)}
        plots.loss_gradients(inverse, normalize=False, ax=right)
    right.set_ylim(bottom=-10)
    left.set_title("focal loss")
    right.set_title("inverse focal loss")
    return Picture(
        "gradientcomparison",
        "Gradients of focal and inverse focal loss",
        "fig:gradientcomparison. ∂ℓ/∂p of the true class. That of focal loss shrinks "
        "to 0 as p goes to 1, that of inverse focal loss does not, and is positive in "
        f"places for γ above 1/W(1/e) = {_TURN} (the paper says 4). Computed from the "
        "losses, as `keras_selcal.analysis.loss_curve` does.",
        left.figure,
    )


def dual_focal() -> Picture:
    """fig:randomdataDFL: dual focal loss where a sample is misclassified."""
    gamma, k, rival = 2, 3, 0.7
    drawn = {
        f'"{variant}"': DualFocalLoss(gamma, variant)
        for variant in ("intended", "discarded", "released")
    }
    ((left, right),) = _axes(1, 2)
    for ax, draw in ((left, plots.loss_weights), (right, plots.loss_gradients)):
        ax.axvspan(
            0,
            rival / (1 + rival),
            color=canvas.PALE,
            alpha=0.4,
            linewidth=0,
            zorder=0,
            label="misclassified",
        )
        draw(drawn, k, normalize=False, rival=rival, ax=ax)
    return Picture(
        "randomdataDFL",
        "Dual focal loss on misclassified samples",
        f"fig:randomdataDFL. Weight and gradient of dual focal loss (γ = {gamma}) "
        f"against p of the true class, one of {k}: another has {rival:g} of the rest, "
        "and is ahead where it is shaded. Of the three variants of `DualFocalLoss`, "
        '"intended" is the formula, "discarded" the paper\'s account of the authors\' '
        'code, and "released" what that code computes: it weighs by the largest '
        "probability below p, which here is the third class's as long as p is above "
        "that. Computed from the losses.",
        left.figure,
    )


# --- Reliability --------------------------------------------------------------------


def published_reliability() -> Picture:
    """fig:rc_ece: the paper's own bars."""
    curves = {
        f"{TITLES[loss]}\nECE = {diagram.ece / 100:.3g}": _published_curve(diagram)
        for loss, diagram in published.diagrams().items()
    }
    return Picture(
        "rc_ece",
        "Reliability diagrams, the paper's",
        "fig:rc_ece. PreResNet56 on CIFAR-10, in 10 bins, from the heights of the bars "
        "in the paper's source; bins that it draws as empty are left out. By these "
        "bars FL-53 is underconfident, inverse focal loss and AURC overconfident: the "
        "paper's text has it the other way round.",
        _diagrams(curves),
    )


def _published_curve(diagram: published.Diagram) -> ReliabilityCurve:
    bars = np.array(diagram.bars)
    lower, upper, accuracy, confidence = bars.T
    middle = (lower + upper) / 2
    empty = np.isclose(accuracy, middle) & np.isclose(confidence, middle)
    accuracy, confidence = (
        np.where(empty, np.nan, values) for values in (accuracy, confidence)
    )
    # Not printed.
    share = np.full(len(bars), np.nan)
    return ReliabilityCurve(confidence, accuracy, share, np.append(lower, upper[-1]))


def _diagrams(curves: dict[str, ReliabilityCurve]) -> Figure:
    count = len(curves)
    columns = count if count <= 4 else -(-count // 2)
    axes = _axes(-(-count // columns), columns, 3.4, 3.6).ravel()
    plots.reliability_gaps(curves, ax=axes[:count])
    figure = axes[0].figure
    # One legend for all, and no room for others.
    for ax in axes[:count]:
        ax.get_legend().remove()
        ax.set_ylim(0, 1)
    for unused in axes[count:]:
        unused.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(columns, 2),
        fontsize="small",
        frameon=False,
    )
    return figure


def reliability_of_runs(runs: Iterable[Run], notes: list[str]) -> Iterator[Picture]:
    """fig:rc_ece, of runs: a picture for each data set and model."""
    drawn = False
    for group in groups(runs):
        curves, seeds = {}, set()
        for loss in TITLES:
            remarks: list[str] = []
            found = group.chosen(loss, remarks)
            notes += [f"fig:rc_ece of ours: {remark}" for remark in remarks]
            if not found:
                continue
            run = min(found, key=lambda run: run.config()["seed"])
            logits, labels = run.predictions("test")
            curves[TITLES[loss]] = functional.reliability_curve(
                labels, logits, _BINS, from_logits=True
            )
            seeds.add(run.config()["seed"])
        if not curves:
            continue
        drawn = True
        named = ", ".join(map(str, sorted(seeds)))
        yield Picture(
            f"rc_ece-{_slug(group)}",
            f"Reliability diagrams, {_place(group)}",
            f"fig:rc_ece, of our runs on the test set, in {_BINS} bins; seed {named}. "
            "ECE is that of these bins.",
            _diagrams(curves),
        )
    if not drawn:
        notes.append("fig:rc_ece of ours: there are no finished runs.")


def _place(group: Group) -> str:
    return f"{group.title} on {dataset_title(group.dataset)}"


def _slug(*parts: Any) -> str:
    text = "-".join(
        f"{dataset_title(part.dataset)}-{part.title}"
        if isinstance(part, Group)
        else str(part)
        for part in parts
    )
    return re.sub(r"[^\w.+]+", "-", text).strip("-").lower()


def influence_of_csf(runs: Iterable[Run], notes: list[str]) -> Iterator[Picture]:
    """fig:influenceCSF: ECE of the AU loss by its confidence score."""
    found: dict[str, dict[str, list[float]]] = {}
    papers: dict[str, float] = {}
    for group in groups(runs):
        for rest, by_csf in _by_csf(group.runs.get("au", {})).items():
            if len(by_csf) < 2:
                continue
            place = f"{dataset_title(group.dataset)}\n{group.title}"
            if place in found:
                place = f"{place}\n{rest}"
            found[place] = {
                name: [evaluate(run, "test", ("ece",))["ece"] for run in members]
                for name, members in by_csf.items()
            }
            paper = group.paper("combined_acc_ece", "none", "ece", "au")
            if paper is not None:
                papers[place] = paper.value
    if not found:
        notes.append(
            "fig:influenceCSF: there are no runs of the AU loss with several scores "
            "(--csf) and all else equal. The paper does not print its numbers."
        )
        return
    yield Picture(
        "influenceCSF",
        "Influence of the confidence score",
        "fig:influenceCSF. ECE × 10² on the test set of networks trained with the AU "
        "loss, by its confidence score: the mean over seeds, each of which is a dot."
        + " The line is the paper's figure, with the score it chose."
        * bool(papers),
        _csf_bars(found, papers),
    )


def _by_csf(candidates: dict[str, list[Run]]) -> dict[str, dict[str, list[Run]]]:
    """Returns runs by the other arguments of their loss, then by score."""
    found: dict[str, dict[str, list[Run]]] = {}
    for text, members in candidates.items():
        arguments = json.loads(text)
        name = str(arguments.pop("csf", None))
        words = ", ".join(f"{key} {value}" for key, value in arguments.items())
        found.setdefault(words, {}).setdefault(name, []).extend(members)
    return found


def _csf_bars(
    found: dict[str, dict[str, list[float]]], papers: dict[str, float]
) -> Figure:
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    names.sort(key=lambda n: settings.CSFS.index(n) if n in settings.CSFS else 99)
    ((ax,),) = _axes(1, 1, max(5.0, 2.0 + 1.6 * len(found)))
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [at for at, one in enumerate(found.values()) if name in one]
        values = [one[name] for one in found.values() if name in one]
        at = np.array(places) - 0.4 + width * (index + 0.5)
        colour = canvas.line_style(index)["color"]
        ax.bar(
            at,
            [np.mean(one) for one in values],
            0.92 * width,
            facecolor=(colour, 0.55),
            edgecolor=colour,
            hatch=("", "////", "....")[index % 3],
            label=name,
        )
        for x, seeds in zip(at, values, strict=True):
            spread = x + 0.2 * width * np.linspace(-1, 1, len(seeds) + 2)[1:-1]
            ax.plot(spread, seeds, "o", color=canvas.BLACK, markersize=3.5)
    for at, place in enumerate(found):
        if place in papers:
            ax.hlines(
                papers[place],
                at - 0.42,
                at + 0.42,
                color=canvas.BLACK,
                linestyle="--",
                linewidth=1.4,
                label="the paper" if place == next(iter(papers)) else None,
            )
    ax.set_xticks(range(len(found)), list(found))
    ax.set_xlim(-0.6, len(found) - 0.4)
    ax.margins(y=0.25)
    canvas.finish(ax, "", "ECE × 10²", loc="upper right", ncols=len(names) + 1)
    ax.grid(False, axis="x")
    return ax.figure


# --- Training -----------------------------------------------------------------------


class KeepPredictions(keras.callbacks.Callback):
    """Keeps what a model predicts after some epochs of its training.

    Args:
        x: inputs, as `predict` takes them.
        epochs: after which to predict, counted from 1.

    Attributes:
        kept: predictions by epoch.
    """

    def __init__(self, x: Any, epochs: Iterable[int]) -> None:
        super().__init__()
        self.x, self.epochs = x, frozenset(epochs)
        self.kept: dict[int, np.ndarray] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 in self.epochs:
            self.kept[epoch + 1] = self.model.predict(self.x, verbose=0)


class Course(NamedTuple):
    """What a training has come by.

    Attributes:
        labels: of the training samples.
        logits: of the training samples, by epoch.
        test: what the model predicts of the test set in the end.
        epochs: how many there were.
    """

    labels: np.ndarray
    logits: dict[int, np.ndarray]
    test: Predictions
    epochs: int


def train_in_view(epochs: int | None = None) -> Course:
    """Trains the quickstart's network with cross-entropy, and keeps what it predicts.

    Args:
        epochs: how long. Defaults to those of the quickstart.
    """
    chosen_settings = settings.settings("digits", "cnn", "xe")
    if epochs is not None:
        chosen_settings = settings.with_epochs(chosen_settings, epochs)
    epochs = chosen_settings.epochs
    digits = data.load("digits")
    size, preprocessing = chosen_settings.batch_size, digits.preprocessing
    batches = data.Batches(digits.train, preprocessing, size, training=True)
    keep = KeepPredictions(
        data.Batches(digits.train, preprocessing, size),
        {max(1, round(moment * epochs)) for moment in _MOMENTS},
    )
    keras.utils.set_random_seed(0)
    model = models.build("cnn", digits.num_classes, digits.input_shape)
    model.compile(
        optimizer=L2SGD(
            chosen_settings.learning_rate,
            momentum=chosen_settings.momentum,
            l2=chosen_settings.weight_decay,
        ),
        loss=losses.build("xe"),
    )
    rate = keras.callbacks.LearningRateScheduler(
        lambda epoch: learning_rate(chosen_settings, epoch)
    )
    model.fit(
        batches,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[batches.callback, rate, keep],
    )
    logits = model.predict(data.Batches(digits.test, preprocessing, size), verbose=0)
    return Course(digits.train.y, keep.kept, Predictions(logits, digits.test.y), epochs)


def _trained(course: Course) -> str:
    return (
        f"cross-entropy on {len(course.labels)} digits, of whose labels "
        f"{100 * LABEL_NOISE:g} % are wrong ({course.epochs} epochs, the quickstart's "
        "setting, seed 0)"
    )


def gradients_over_epochs(course: Course) -> Picture:
    """fig:gradients_over_epochs: what losses would do to a model's samples."""
    drawn = {
        "XE": FocalLoss(0),
        "FL, γ = 3": FocalLoss(3),
        "Inv. FL, γ = 2": InverseFocalLoss(2),
        "Dual, γ = 5": DualFocalLoss(5, "released"),
        "AU": AULoss(),
    }
    (axes,) = _axes(1, len(course.logits), 4.6, 4.6)
    logits = {f"epoch {epoch}": found for epoch, found in course.logits.items()}
    plots.sample_gradients(drawn, course.labels, logits, from_logits=True, ax=axes)
    for ax in axes[:-1]:
        ax.get_legend().remove()
    for ax in axes[1:]:
        ax.set_ylabel("")
    return Picture(
        "gradients_over_epochs",
        "Evolution of the gradient during training",
        "fig:gradients_over_epochs. ∂ℓ/∂p of the true class, on the training samples "
        "of one network as it trains; each sample is a point for each loss. The paper "
        "has a ResNet and 20,000 samples of CIFAR-10 at epochs 40, 120 and 200 of 200; "
        f"this is the small network, trained with {_trained(course)}. It soon knows "
        "all of them by heart, so that it is looked at earlier. Dual is the variant "
        '"released"; AU (κ = 0.75, ν = 0.1) ranks the samples together.',
        axes[0].figure,
    )


def smoothing(course: Course) -> Picture:
    """fig:smoothparameter: the soft CDF over a histogram of scores."""
    k = course.test.logits.shape[-1]
    scores = ops.convert_to_numpy(csf.msp(ops.softmax(course.test.logits)))
    ((ax,),) = _axes(1, 1, 6.4, 4.6)
    plots.score_cdf(scores, (0.01, 0.1, 1.0), support=csf.get("msp").support(k), ax=ax)
    return Picture(
        "smoothparameter",
        "The soft CDF",
        "fig:smoothparameter. Soft CDF for ν = 0.01, 0.1 and 1 over the histogram of "
        f"the scores (msp) of {len(scores)} test images, by the small network, trained "
        f"with {_trained(course)}. The scores are scaled from [1/k, 1] to [0, 1], as "
        "the AU loss does before it applies ν.",
        ax.figure,
    )


# --- Selection ----------------------------------------------------------------------


class Selection(NamedTuple):
    """A search, as `python -m recipes select` writes it.

    Attributes:
        title: loss, model and data set.
        name: of its folder.
        fields: what was searched.
        columns: of the file: numbers, NaN where there is none, or texts.
    """

    title: str
    name: str
    fields: tuple[str, ...]
    columns: dict[str, Any]


def read_selection(path: str | os.PathLike[str]) -> Selection:
    """Reads a `selection.csv`."""
    path = Path(path)
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        names = reader.fieldnames or []
    if "val_loss" not in names or not rows:
        raise RunError(f"{path} is no selection: it has no runs with a val_loss.")
    results = ("seed", "val_loss", "val_nll", "val_accuracy", "val_ece", "epoch")
    fields = tuple(n for n in names if n not in (*results, "run", "state"))
    columns = {name: _numbers([row[name] for row in rows]) for name in names}
    return Selection(
        _search_title(path, rows), path.absolute().parent.name, fields, columns
    )


def _numbers(texts: list[str]) -> Any:
    try:
        return np.array([float(text) if text else np.nan for text in texts])
    except ValueError:
        return np.array(texts)


def _search_title(path: Path, rows: list[dict[str, str]]) -> str:
    """Returns what was searched, as a run tells it; else the name of the folder."""
    for row in rows:
        folder = path.parent / row.get("run", "")
        if row.get("run") and (folder / CONFIG).exists():
            config = Run(folder).config()
            model = MODELS.get(config["model"], config["model"])
            dataset = dataset_title(config["dataset"])
            return f"{TITLES[config['loss']]}, {model} on {dataset}"
    return path.absolute().parent.name


_CRITERIA = {"val_nll": "min", "val_accuracy": "max", "val_ece": "min"}


def of_searches(
    searches: Sequence[Selection], label: str, notes: list[str]
) -> Iterator[Picture]:
    """fig:gammaselection, of one number; fig:nuselection, of two."""
    count = 1 if label == "gammaselection" else 2
    drawn = False
    for search in searches:
        numbers, others = _varied(search)
        if not 1 <= len(numbers) <= 2:
            if count == 1:
                notes.append(
                    f"{search.title}: a search of {' × '.join(search.fields)} is no "
                    "curve and no map."
                )
            continue
        if len(numbers) != count:
            continue
        drawn = True
        yield _search_picture(search, label, numbers, others)
    if not drawn:
        what = "of one number, such as γ" if count == 1 else "of ν and κ"
        notes.append(f"fig:{label} of ours: no search {what} is given by --selection.")


def _varied(search: Selection) -> tuple[list[str], list[str]]:
    """Returns the fields that vary, numbers and others; ν is drawn along x."""
    varied = [n for n in search.fields if len(np.unique(search.columns[n])) > 1]
    numbers = [n for n in varied if search.columns[n].dtype.kind == "f"]
    numbers.sort(key=lambda name: name != "smoothing")
    return numbers, [name for name in varied if name not in numbers]


def _search_picture(
    search: Selection, label: str, numbers: list[str], others: list[str]
) -> Picture:
    columns = search.columns
    criteria = {name: best for name, best in _CRITERIA.items() if name in columns}
    if "val_nll" not in columns:
        criteria = {"val_loss": "min", **criteria}
    keys = list(zip(*(columns[name] for name in others), strict=True)) or [()]
    parts = list(dict.fromkeys(keys))
    axes = _axes(len(parts), len(criteria), 4.6, 3.9)
    draw = search_curve if len(numbers) == 1 else search_map
    for row, part in zip(axes, parts, strict=True):
        inside = np.array([key == part for key in keys])
        shown = {
            name: column[inside] if others else column
            for name, column in columns.items()
        }
        for ax, (value, best) in zip(row, criteria.items(), strict=True):
            draw(shown, *numbers, value, best=best, ax=ax)
        if others:
            words = ", ".join(
                f"{name} {value}" for name, value in zip(others, part, strict=True)
            )
            row[0].set_title(
                f"{words}\n{row[0].get_title(loc='left')}".strip(),
                loc="left",
                pad=26 if len(numbers) == 2 else None,
            )
    lost = int(np.isnan(columns[next(iter(criteria))]).sum())
    caption = (
        f"fig:{label}, of our search: {search.title}. Validation set, "
        f"{len(columns['val_loss'])} runs"
        + (f", {lost} of them without a result" if lost else "")
        + ". "
    )
    if "val_nll" in criteria:
        caption += "NLL is the cross-entropy, by which settings compare. "
    caption += "Runs that differ in the seed alone are averaged."
    return Picture(
        f"{label}-{_slug(search.name)}",
        f"Selection: {search.title}",
        caption,
        axes[0, 0].figure,
    )


def published_gamma() -> Picture:
    """fig:gammaselection: the γ that the paper has chosen."""
    names = [f"{MODELS[m]}, {dataset_title(d)}" for d, m in settings.TUNED]
    rows = np.arange(len(names))[::-1]
    ((ax,),) = _axes(1, 1, 7.0, 4.4)
    for colour, marker, label, values in (
        (canvas.BLUE, "o", "Inv. FL", [t.inverse for t in settings.TUNED.values()]),
        (canvas.VERMILLION, "D", "Dual", [t.dual for t in settings.TUNED.values()]),
    ):
        # Where both are equal, both are seen.
        shift = 0.12 if marker == "o" else -0.12
        ax.plot(
            values,
            rows + shift,
            linestyle="none",
            marker=marker,
            markersize=7,
            color=colour,
            label=label,
        )
    ax.plot(
        [_TURN, _TURN],
        [-0.6, len(names) - 0.4],
        color=canvas.BLUE,
        linestyle="--",
        linewidth=1.2,
        label=f"Inv. FL: positive gradients from γ = {_TURN}",
    )
    ax.set_yticks(rows, names)
    ax.set_xlim(0, 7)
    ax.set_ylim(-0.6, len(names) + 0.6)
    canvas.finish(ax, "γ", "", loc="upper right", ncols=3)
    return Picture(
        "gammaselection",
        "γ, as the paper has chosen it",
        "fig:gammaselection. The paper draws the validation performance of "
        "Tiny-ImageNet against γ without its numbers; these are the γ that it has "
        "chosen by validation loss (tb:gammaforinvdual).",
        ax.figure,
    )


def published_region() -> Picture:
    """fig:nuselection: the κ and ν that the paper has chosen."""
    ((ax,),) = _axes(1, 1, 7.0, 4.6)
    together: dict[tuple[float, float, str], list[str]] = {}
    for (dataset, model), tuned in settings.TUNED.items():
        key = (tuned.smoothing, tuned.coverage, dataset)
        together.setdefault(key, []).append(MODELS[model])
    datasets = list(dict.fromkeys(dataset for dataset, _ in settings.TUNED))
    for index, dataset in enumerate(datasets):
        points = {key: m for key, m in together.items() if key[2] == dataset}
        x, y, _ = zip(*points, strict=True)
        ax.plot(
            x,
            y,
            linestyle="none",
            marker="oDs"[index],
            # One that lies under another is seen around it.
            markersize=13 if index == 0 else 7,
            color=canvas.line_style(index)["color"],
            label=dataset_title(dataset),
        )
        for (nu, kappa, _), members in points.items():
            # Those of CIFAR-10 to the right, of the others to the left.
            right = index == 0
            ax.annotate(
                ", ".join(members),
                (nu, kappa),
                xytext=(9 if right else -9, 0),
                textcoords="offset points",
                ha="left" if right else "right",
                va="center",
                fontsize="small",
            )
    ax.set_xscale("log")
    ax.set_xlim(0.0018, 0.5)
    ax.set_ylim(0.3, 1)
    ticks = [0.005, 0.01, 0.05, 0.1]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    canvas.finish(ax, "ν", "κ: low-confidence coverage", loc="lower left")
    return Picture(
        "nuselection",
        "ν and κ, as the paper has chosen them",
        "fig:nuselection. The paper draws the validation performance of PreResNet56 on "
        "CIFAR-10 over ν and κ without its numbers; these are the κ "
        "(tb:thresholdforau) and ν that it has chosen for the AU loss of each model, "
        "as printed.",
        ax.figure,
    )
