"""The report on runs: `python -m recipes evaluate RUNS --html report.html`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_selcal import CalibrationReport
from recipes import data
from recipes.runs import Run
from recipes.tasks import RunError
from recipes.training import split_digest


def write_report(
    runs: Sequence[Run],
    output: str | os.PathLike[str],
    *,
    split: str = "test",
    title: str | None = None,
    data_dir: str | None = None,
    resamples: int = 1000,
) -> Path:
    """Writes an HTML report on the logits of runs, and returns its path.

    The other runs are compared with the first; all must have the same data. Mistakes
    are shown as images if the data is available: always for digits, and by `data_dir`
    for other data sets.

    Args:
        runs: finished runs.
        output: path of the report.
        split: `"test"` or `"val"`.
        title: title of the report. Defaults to the name of the first run.
        data_dir: path of the data, as in training.
        resamples: number of bootstrap resamples.
    """
    reports = []
    for run in runs:
        logits, labels = run.predictions(split)
        reports.append(
            CalibrationReport(
                labels, logits, from_logits=True, bootstrap=resamples, name=run.name
            )
        )
        if reports[0].num_samples != len(labels):
            raise RunError(
                f"{run.name} and {runs[0].name} have different {split} data."
            )
    config = runs[0].config()
    try:
        images = run_images(config, split, data_dir)
        return reports[0].to_html(
            output,
            others=reports[1:],
            title=title,
            class_names=config["data"]["class_names"],
            images=images,
        )
    except ValueError as error:
        raise RunError(" ".join(str(error).split())) from error


def run_images(config: dict[str, Any], split: str, data_dir: str | None) -> Any:
    """Returns the images that a run was evaluated on, or None if they are missing."""
    if data_dir is None and config["dataset"] != "digits":
        return None
    noise = config["label_noise"]
    dataset = data.load(
        config["dataset"],
        data_dir,
        image_size=config["settings"]["image_size"],
        **({} if noise is None else {"label_noise": noise}),
    )
    samples = dataset.test if split == "test" else dataset.val
    if split_digest(samples) != config["data"][split]:
        raise RunError(f"the {split} data of the run is not that of {data_dir}.")
    return samples.x
