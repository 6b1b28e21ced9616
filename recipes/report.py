"""The report page of some runs: `python -m recipes report RUNS -o report.html`."""

import os
from collections.abc import Sequence
from pathlib import Path

from keras_selcal import CalibrationReport
from recipes.runs import RunError, runs_in


def write_report(
    run_paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    split: str = "test",
    title: str | None = None,
    resamples: int = 1000,
) -> Path:
    """Writes one page on the logits of runs, and returns its path.

    The first run is what the others are compared with; all must be of one data set.
    Class names are those of the first `config.json` that has `class_names`.

    Args:
        run_paths: folders of runs, or folders of folders of runs.
        output: the page.
        split: `"test"` or `"val"`.
        title: of the page; None for one by the run's name.
        resamples: of the bootstrap.
    """
    runs = runs_in(run_paths)
    reports = []
    for run in runs:
        logits, labels = run.predictions(split)
        reports.append(
            CalibrationReport(
                labels, logits, from_logits=True, bootstrap=resamples, name=run.name
            )
        )
        if reports[0].num_samples != len(labels):
            raise RunError(f"{run.name} and {runs[0].name} are of other {split} data.")
    names = (run.config().get("class_names") for run in runs)
    try:
        return reports[0].to_html(
            output,
            others=reports[1:],
            title=title,
            class_names=next(filter(None, names), None),
        )
    except ValueError as error:
        raise RunError(" ".join(str(error).split())) from error
