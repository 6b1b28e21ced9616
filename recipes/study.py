"""Trains the runs of STUDY.md and updates its tables: `python -m recipes study`."""

import os
from collections.abc import Sequence
from pathlib import Path

from recipes.launch import Ended, run_all, training_job
from recipes.progress import Progress, console
from recipes.runs import Run, RunError
from recipes.study_plan import experiments
from recipes.study_tables import (
    RESULTS,
    StudyResult,
    read_results,
    result_of,
    tables,
    with_tables,
    write_results,
)

PAGE = Path(__file__).with_name("STUDY.md")


def run_study(
    folder: str | os.PathLike[str],
    *,
    data_dir: str | None = None,
    pretrained: str | None = None,
    jobs: int | None = None,
    engine: str = "local",
    page: bool = False,
) -> None:
    """Trains the missing runs of the study, and writes the results.

    Args:
        folder: where to write the runs, `results.csv` and `tables.md`.
        data_dir: path of CIFAR-10.
        pretrained: pretrained weights of ResNet-20. If None, the runs that need them
            are left out.
        jobs: number of runs at a time.
        engine: one of `recipes.launch.ENGINES`.
        page: whether to update STUDY.md and study.csv. Results of runs that are not in
            the folder are kept.
    """
    output = console()
    folder = Path(folder)
    wanted = [one for one in experiments() if pretrained or one.bed != "finetune"]
    runs = {one: Run(folder / one.name) for one in wanted}
    data = [] if data_dir is None else ["--data-dir", data_dir]
    files = {
        "scratch": data,
        "long": data,
        "digits": [],
        "finetune": [*data, "--pretrained", str(pretrained)],
    }
    open_jobs = [
        training_job(run, [*one.arguments, *files[one.bed]])
        for one, run in runs.items()
        if not run.finished
    ]
    output.print(f"{len(runs)} runs, {len(runs) - len(open_jobs)} finished already")
    with Progress(output, len(open_jobs)) as progress:

        def report(one: Ended) -> None:
            note = one.failure() if one.error else f"{one.seconds:.0f} s"
            progress.end(one.job.run.name, note)

        ended = run_all(open_jobs, engine, at_once=jobs, report=report)
    results = [result_of(one, run) for one, run in runs.items() if run.finished]
    failed = sum(one.error is not None for one in ended)
    if results:
        write_results(results, folder / "results.csv")
        parts = (f"## {name}\n\n{text}\n" for name, text in tables(results).items())
        (folder / "tables.md").write_text("\n".join(parts), encoding="utf-8")
        output.print(f"{folder}: results.csv and tables.md")
    if page:
        _update_page(results)
    if failed:
        raise RunError(f"{failed} runs failed; the same command tries them again.")


def _update_page(results: Sequence[StudyResult]) -> None:
    """Updates study.csv and STUDY.md."""
    by_name = {r.experiment.name: r for r in (*read_results(RESULTS), *results)}
    merged = [by_name[one.name] for one in experiments() if one.name in by_name]
    write_results(merged, RESULTS)
    page = with_tables(PAGE.read_text(encoding="utf-8"), merged)
    PAGE.write_text(page, encoding="utf-8")
