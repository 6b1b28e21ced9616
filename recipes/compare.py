"""Compares losses on your own data: `python -m recipes compare`.

The rules are those of STUDY.md: one network and the same budget for each loss, paired
differences over seeds, and NLL and AURC after temperature scaling decide.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_selcal import CalibrationReport
from keras_selcal._validation import check_choice, refuse
from keras_selcal.report.html import markup
from recipes import models, study
from recipes.contest import (
    LOSSES,
    Contest,
    Gap,
    Setting,
    Splits,
    measures,
    paired,
)
from recipes.data import own
from recipes.request import RunError
from recipes.runs import digest, writing
from recipes.study_page import PRIMARY, titled
from recipes.tables import Table
from recipes.training import split_digest

MODELS = ("mlp", "cnn", *(name for name in models.NAMES if name != "cnn"))
# What is compared by default; the first loss is the one to beat.
DEFAULT = ("xe", "xe_smoothed", "xe_dropout", "focal", "kde_xe", "aurc", "au")
SHOWN = (*PRIMARY, "accuracy", "coverage_ts", "ece_ts", "ece")
_PROTOCOLS = {"best": "Best epoch by validation NLL", "last": "Last epoch"}


def network(
    model: str, shape: tuple[int, ...], classes: int
) -> Callable[[float], keras.Model]:
    """Returns the function that builds a model for a rate of dropout."""
    if model != "mlp" and len(shape) != 3:
        refuse("model", model, f"mlp for inputs of shape {shape}")
    if model in ("mlp", "cnn"):
        make = study.mlp if model == "mlp" else study.cnn
        return lambda dropout: make(shape, classes, dropout)
    return lambda dropout: models.build(model, classes, shape)


# --- Verdict ------------------------------------------------------------------------

Gaps = dict[str, dict[str, Gap]]


def name_of(loss: str) -> str:
    """Returns what a sentence calls a loss."""
    title = LOSSES[loss].title
    return f"cross-entropy {title}" if title.startswith("+") else title


def gaps_of(rows: Sequence[Mapping[str, Any]], protocol: str) -> Gaps:
    """Returns the losses minus the first one by metric, paired over seeds.

    The intervals of the metrics that decide hold for all losses together at 95 %
    (Bonferroni), so that more losses do not find more by chance.
    """
    by_loss: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        if row["protocol"] == protocol:
            by_loss.setdefault(row["loss"], []).append(row)
    base = rows[0]["loss"]
    rivals = [loss for loss in by_loss if loss != base]
    return {
        loss: {
            metric: paired(
                [
                    one[f"test_{metric}"] - other[f"test_{metric}"]
                    for one, other in zip(by_loss[loss], by_loss[base], strict=True)
                ],
                comparisons=len(rivals) * len(PRIMARY),
            )
            for metric in SHOWN
        }
        for loss in rivals
    }


def decided(gaps: Mapping[str, Gap]) -> str:
    """Returns `"better"`, `"worse"`, `"mixed"` or `"undecided"`, by `PRIMARY`."""
    said = {gaps[metric].verdict(metric) for metric in PRIMARY} - {"undecided"}
    return "mixed" if len(said) > 1 else next(iter(said), "undecided")


def verdict(gaps: Gaps, base: str) -> list[str]:
    """Returns the verdict in sentences: what to use, and then a line for each loss."""
    first = name_of(base)
    better = [loss for loss in gaps if decided(gaps[loss]) == "better"]
    lines = [f"Use {first}: no other loss was better on this data."]
    if all(decided(found) == "undecided" for found in gaps.values()):
        lines = [
            f"Undecided: these runs tell no loss from {first}. More seeds may; until "
            f"then, use {first}."
        ]
    if better:
        best = min(better, key=lambda loss: gaps[loss]["nll_ts"].mean)
        lines = [f"Use {name_of(best)}: it was better than {first} on this data."]
    words = {
        "better": f"is better than {first}",
        "worse": f"is worse than {first}",
        "mixed": f"is better than {first} by one metric and worse by the other",
        "undecided": f"is no different from {first} as far as these runs can tell",
    }
    for loss, found in gaps.items():
        figures = ", ".join(
            f"{titled(metric)[:-2]} {found[metric].text(metric, _digits(metric))}"
            for metric in PRIMARY
        )
        lines.append(f"{name_of(loss)} {words[decided(found)]}: {figures}.")
    return [line[0].upper() + line[1:] for line in lines]


def _digits(metric: str) -> int:
    return 3 if "nll" in metric else 2


def table(rows: Sequence[Mapping[str, Any]], protocol: str) -> Table:
    """Returns the first loss, and the differences of the others from it."""
    base = rows[0]["loss"]
    first = [r for r in rows if (r["loss"], r["protocol"]) == (base, protocol)]
    means = [
        f"{np.mean([r[f'test_{m}'] for r in first]):.{_digits(m)}f}" for m in SHOWN
    ]
    lines = [[name_of(base), *means]]
    for loss, found in gaps_of(rows, protocol).items():
        texts = [found[metric].text(metric, _digits(metric)) for metric in SHOWN]
        lines.append([name_of(loss), *texts])
    heading = ["test data", *map(titled, SHOWN)]
    return Table(heading, lines, title=_PROTOCOLS[protocol])


# --- Runs and page ------------------------------------------------------------------


def compare(
    dataset: str,
    *,
    model: str | None = None,
    losses: Sequence[str] = (),
    seeds: int = 5,
    epochs: int = 20,
    data_dir: str | None = None,
    out: str = "runs/compare",
    say: Callable[[str], None] = print,
) -> list[str]:
    """Trains with each loss and seed, writes results.csv and report.html.

    Trainings that were finished before, with the same data and settings, are read from
    the folder `runs` of `out`.

    Returns:
        The verdict, as `verdict` gives it.
    """
    try:
        found = own.load(dataset, data_dir)
        model = model or ("cnn" if found.train.x.ndim == 4 else "mlp")
        found = own.scaled(found, check_choice("model", model, MODELS))
        shape, classes = found.train.x.shape[1:], len(found.class_names)
        plain = model in ("mlp", "cnn")
        # Other networks have no place for dropout.
        known = [n for n in LOSSES if plain or not LOSSES[n].dropout]
        chosen = tuple(losses) or tuple(name for name in DEFAULT if name in known)
        for name in chosen:
            check_choice("losses", name, known)
        if len(set(chosen)) < max(2, len(chosen)):
            refuse("losses", ",".join(chosen), "two or more different names")
        contest = Contest(network(model, shape, classes))
        contest.build(0.0)  # Fails before the training if it cannot be built.
        drawn = [found.train.hold_out(seed) for seed in range(seeds)]
    except ValueError as error:
        raise RunError(" ".join(str(error).split())) from error
    rows: list[dict[str, Any]] = []
    reports = []
    folder = Path(out)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    about = {
        "data": [split_digest(split) for split in (found.train, found.test)],
        "model": model,
        "backend": keras.backend.backend(),
    }
    # Small data gets smaller batches, so that an epoch has several steps.
    size = min(128, max(16, len(drawn[0][0]) // 8))
    for seed, (train, val) in enumerate(drawn):
        samples = Splits(train, val, found.test)
        for loss in chosen:
            setting = Setting.default(loss, epochs, batch_size=size)
            name = digest({**about, "setting": asdict(setting), "seed": seed})
            path = folder / "runs" / f"{loss}-{seed}-{name[:12]}.npz"
            if not path.exists():
                _write(path, *_train(contest, setting, samples, seed))
            of_loss, logits = _read(path)
            rows += of_loss
            nll, seconds = of_loss[-1]["test_nll_ts"], of_loss[-1]["seconds"]
            say(f"seed {seed}, {name_of(loss)}: {seconds:.0f} s, NLL + TS {nll:.3f}")
            if not seed:
                options: Any = {"from_logits": True, "name": name_of(loss)}
                reports.append(CalibrationReport(found.test.y, logits, **options))
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    told = verdict(gaps_of(rows, "best"), chosen[0])
    tables = [table(rows, protocol) for protocol in _PROTOCOLS]
    how = (
        f"{model}, {epochs} epochs, {seeds} seeds, {len(drawn[0][0]):,} training, "
        f"{len(drawn[0][1]):,} validation and {len(found.test):,} test samples. "
        "▲ is better and ▼ is worse. A seed decides the validation data, the initial "
        "weights and the order of batches; the test data is the same. Intervals of NLL "
        "and AURC hold for all losses together at 95 %."
    )
    late = [row["epoch"] == epochs for row in rows if row["protocol"] == "best"]
    if 2 * sum(late) > len(late):
        how += (
            f" The last epoch was the best one in {sum(late)} of {len(late)} "
            "trainings: more epochs may change the verdict."
        )
    for part in ("", *(one.markdown() + "\n" for one in tables), how, "", *told):
        say(part)
    page = folder / "report.html"
    reports[0].to_html(
        page,
        others=reports[1:],
        title=f"Losses on {Path(dataset.partition(':')[2] or dataset).name}",
        class_names=found.class_names,
    )
    _add_verdict(page, told, tables, how)
    say(f"\n{page} and {folder / 'results.csv'}")
    return told


Run = tuple[list[dict[str, Any]], np.ndarray]


def _train(contest: Contest, setting: Setting, samples: Splits, seed: int) -> Run:
    """Returns a row for each protocol, and the scaled test logits of the best epoch."""
    outcomes, seconds = contest.train(setting, samples, seed)
    rows = [
        {
            **{"loss": setting.loss, "protocol": protocol, "seed": seed},
            **measures(outcome, samples),
            "seconds": seconds,
        }
        for protocol, outcome in outcomes.items()
    ]
    return rows, outcomes["best"].test / rows[-1]["temperature"]


def _write(path: Path, rows: list[dict[str, Any]], logits: np.ndarray) -> None:
    """Writes a finished training, whole or not at all."""
    with writing(path) as partial:
        np.savez_compressed(partial, rows=json.dumps(rows), logits=logits)


def _read(path: Path) -> Run:
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["rows"])), file["logits"]


def _add_verdict(
    page: Path, told: Sequence[str], tables: Sequence[Table], how: str
) -> None:
    """Puts the verdict over all seeds before the report, which is on seed 0."""
    first, *others = map(escape, told)
    items = "".join(f"<li>{line}</li>" for line in others)
    shown = "".join(
        markup.table(
            one.title,
            [*map(escape, one.heading)],
            [[*map(escape, row)] for row in one.rows],
        )
        for one in tables
    )
    section = (
        '<section id="verdict" aria-labelledby="verdict-heading">'
        '<h2 id="verdict-heading">Which loss to use</h2>'
        f"<p><b>{first}</b></p><ul>{items}</ul>{shown}<p>{escape(how)}</p>"
        "<p>The sections below compare the models of seed 0 at their best epochs, "
        "after temperature scaling.</p></section>\n"
    )
    text = page.read_text("utf-8")
    text = text.replace("<main>\n", f"<main>\n{section}", 1)
    link = '<li><a href="#verdict">Verdict</a></li>'
    text = text.replace('Sections"><ul>', f'Sections"><ul>{link}', 1)
    page.write_text(text, "utf-8")
