"""Figures of trained networks: reliability diagrams and the influence of the CSF."""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from keras_selcal import functional, plots
from keras_selcal.functional.reliability import ReliabilityCurve
from keras_selcal.plots import canvas
from recipes import settings
from recipes.evaluation import evaluate
from recipes.losses import TITLES
from recipes.paper import published
from recipes.paper.groups import dataset_title, groups
from recipes.paper.picture import Picture, axes, slug
from recipes.runs import Run

# As in the paper's diagrams.
_BINS = 10
_STYLES = {"msp": (canvas.BLUE, ""), "margin": (canvas.VERMILLION, "////")}
_OTHER = (canvas.GREEN, "....")


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
        "in the paper's source; empty bins are left out. These bars show FL-53 as "
        "underconfident, and inverse focal loss and AURC as overconfident; the paper's "
        "text says the opposite.",
        _diagrams(curves),
    )


def _published_curve(diagram: published.Diagram) -> ReliabilityCurve:
    lower, upper, accuracy, confidence = np.array(diagram.bars).T
    middle = (lower + upper) / 2
    empty = np.isclose(accuracy, middle) & np.isclose(confidence, middle)
    confidence, accuracy = (
        np.where(empty, np.nan, values) for values in (confidence, accuracy)
    )
    share = np.full(len(lower), np.nan)  # the paper does not print it
    return ReliabilityCurve(confidence, accuracy, share, np.append(lower, upper[-1]))


def _diagrams(curves: dict[str, ReliabilityCurve]) -> Figure:
    """Draws a diagram for each curve, with one legend for all."""
    count = len(curves)
    columns = count if count <= 4 else -(-count // 2)
    panels = axes(-(-count // columns), columns, 3.4, 3.6).ravel()
    plots.reliability_gaps(curves, ax=panels[:count])
    for ax in panels[:count]:
        ax.get_legend().remove()
        ax.set_ylim(0, 1)
    for unused in panels[count:]:
        unused.remove()
    figure: Figure = panels[0].figure
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(columns, 2),
        fontsize="small",
        frameon=False,
    )
    return figure


def reliability_of_runs(runs: Iterable[Run], notes: list[str]) -> Iterator[Picture]:
    """fig:rc_ece of runs: a picture for each data set, model and setup."""
    drawn = False
    for group in groups(runs):
        remarks: list[str] = []
        curves, seeds = {}, set()
        for loss in TITLES:
            found = group.chosen(loss, remarks)
            if found:
                run = min(found, key=lambda run: run.config()["seed"])
                logits, labels = run.predictions("test")
                curves[TITLES[loss]] = functional.reliability_curve(
                    labels, logits, _BINS, from_logits=True
                )
                seeds.add(run.config()["seed"])
        notes += [f"fig:rc_ece of ours: {remark}" for remark in remarks]
        if curves:
            drawn = True
            dataset = dataset_title(group.dataset)
            yield Picture(
                f"rc_ece-{slug(f'{dataset}-{group.title}')}",
                f"Reliability diagrams, {group.title} on {dataset}",
                f"fig:rc_ece, of our runs on the test set, in {_BINS} bins; seed "
                f"{', '.join(map(str, sorted(seeds)))}. ECE is computed in these bins.",
                _diagrams(curves),
            )
    if not drawn:
        notes.append("fig:rc_ece of ours: there are no finished runs.")


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
            "fig:influenceCSF: there are no runs of the AU loss that differ only in "
            "the score (--csf). The paper does not print its numbers."
        )
        return
    line = " The line is the paper's number, with the score that it chose."
    yield Picture(
        "influenceCSF",
        "Influence of the confidence score",
        "fig:influenceCSF. ECE × 10² on the test set of networks trained with the AU "
        "loss, by confidence score: the mean over seeds, and a dot for each seed."
        + (line if papers else ""),
        _csf_bars(found, papers),
    )


def _by_csf(
    candidates: Mapping[str, list[Run]],
) -> dict[str, dict[str, list[Run]]]:
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
    known = settings.CSFS
    names = sorted(
        {name for one in found.values() for name in one},
        key=lambda name: known.index(name) if name in known else len(known),
    )
    ((ax,),) = axes(1, 1, max(5.0, 2.0 + 1.6 * len(found)))
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        colour, hatch = _STYLES.get(name, _OTHER)
        places = [at for at, one in enumerate(found.values()) if name in one]
        values = [one[name] for one in found.values() if name in one]
        at = np.array(places) - 0.4 + width * (index + 0.5)
        ax.bar(
            at,
            [np.mean(one) for one in values],
            0.92 * width,
            facecolor=(colour, 0.55),
            edgecolor=colour,
            hatch=hatch,
            label=name,
        )
        for x, seeds in zip(at, values, strict=True):
            spread = x + 0.2 * width * np.linspace(-1, 1, len(seeds) + 2)[1:-1]
            ax.plot(spread, seeds, "o", color=canvas.BLACK, markersize=3.5)
    for index, place in enumerate(found):
        if place in papers:
            label = "the paper" if place == next(iter(papers)) else None
            ends = (index - 0.42, index + 0.42)
            ax.hlines(
                papers[place], *ends, color=canvas.BLACK, linestyle="--", label=label
            )
    ax.set_xticks(range(len(found)), list(found))
    ax.set_xlim(-0.6, len(found) - 0.4)
    ax.margins(y=0.25)
    canvas.finish(ax, "", "ECE × 10²", loc="upper right", ncols=len(names) + 1)
    ax.grid(False, axis="x")
    figure: Figure = ax.figure
    return figure
