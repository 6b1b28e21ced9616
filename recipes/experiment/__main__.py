"""Command line of the experiment; see EXPERIMENT.md."""

import argparse
import functools
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    """Trains the runs that are missing, or writes the tables of EXPERIMENT.md."""
    from recipes.experiment.plan import BEDS
    from recipes.tasks import RunError

    parser = argparse.ArgumentParser(prog="python -m recipes.experiment")
    parser.add_argument("--bed", choices=BEDS, help="the bed to train")
    parser.add_argument("--data-dir", help="folder or file of its data")
    parser.add_argument(
        "--free-gains", action="store_true", help="train these instead of the losses"
    )
    parser.add_argument("--arms", nargs="+", help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: all planned")
    parser.add_argument("--epochs", type=int, help="default: those of the bed")
    parser.add_argument("--results", type=Path, help="default: the committed file")
    parser.add_argument("--work", type=Path, default=Path("experiment-runs"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, by Ray")
    parser.add_argument(
        "--page", action="store_true", help="write the verdicts of EXPERIMENT.md"
    )
    options = parser.parse_args()
    if options.page:
        from recipes.experiment.verdicts import write_page

        write_page()
        return
    if options.bed is None or options.data_dir is None:
        parser.error("pass --bed and --data-dir, or --page")
    try:
        train(options)
    except RunError as error:
        parser.exit(1, f"error: {error}\n")


def train(options: argparse.Namespace) -> None:
    """Trains what a file of results lacks, seed by seed, and appends its rows."""
    import keras

    from recipes.engine import Ended, Job, train_all
    from recipes.experiment import plan, results
    from recipes.progress import Progress, console
    from recipes.runs import Run
    from recipes.tasks import Pool, RunError

    bed, work = options.bed, options.work
    gains = (
        plan.GAINS
        if options.free_gains
        else {name: plan.Gain(arm.title, (name,)) for name, arm in plan.ARMS.items()}
    )
    file = options.results or (results.GAINS if options.free_gains else results.RESULTS)
    names = options.arms or list(gains)
    if unknown := sorted({*names} - {*gains}):
        raise RunError(f"the arms are {', '.join(gains)}. Received: {unknown[0]}")
    wanted = [
        (name, seed)
        for seed in options.seeds or range(plan.BEDS[bed].seeds)
        for name in names
        if (bed, name, seed) not in results.done(file)
    ]

    @functools.cache
    def job(run: str, seed: int) -> Job:
        task = plan.task(bed, run, seed, options.data_dir, options.epochs)
        return Job(Run(work / f"{bed}-{run}-{seed}"), task)

    def report(ended: Ended) -> None:
        """Writes the rows of every arm whose runs have ended."""
        diverged.update([ended.job.run.name] if ended.diverged else [])
        for name, seed in wanted:
            key: dict[str, Any] = {"bed": bed, "arm": name, "seed": seed}
            members = [job(run, seed) for run in gains[name].runs]
            if ended.job not in members:
                continue
            runs = [member.run for member in members]
            if any(run.name in diverged for run in runs):
                epochs = members[0].task.settings.epochs
                results.append(results.rows_of_diverged(key, epochs), file)
            elif all(run.finished for run in runs):
                rows = results.rows_of(key, runs, gains[name].csf)
                results.append(rows, file)

    diverged: set[str] = set()
    jobs = dict.fromkeys(job(r, seed) for n, seed in wanted for r in gains[n].runs)
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)  # the order of sums depends on it
    # No test figure is printed: see the protocol.
    with Progress(console(), len(jobs)) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the drag of w = 1
        ended = train_all(list(jobs), progress, Pool(options.jobs), report)
    if failed := sum(one.error is not None and not one.diverged for one in ended):
        raise RunError(f"{failed} runs failed; the same command tries them again.")


if __name__ == "__main__":
    main()
