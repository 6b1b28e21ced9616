"""Command line of the experiment; see EXPERIMENT.md."""

import argparse
import fcntl
import time
import warnings
from pathlib import Path


def main() -> None:
    """Trains the runs that are missing, or writes the tables of EXPERIMENT.md."""
    from recipes.experiment.plan import ARMS, BEDS
    from recipes.experiment.training import RESULTS

    parser = argparse.ArgumentParser(prog="python -m recipes.experiment")
    parser.add_argument("--bed", choices=BEDS, help="the bed to train")
    parser.add_argument("--data-dir", type=Path, help="folder or file of its data")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, help="default: all planned")
    parser.add_argument("--epochs", type=int, help="default: those of the bed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("experiment-runs"))
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
    seeds = options.seeds or range(BEDS[options.bed].seeds)
    for seed in seeds:
        for arm in options.arms:
            _run(options, arm, seed)


def _run(options: argparse.Namespace, arm: str, seed: int) -> None:
    """Trains a run, unless it is finished or another process has it."""
    import keras

    from recipes.experiment import plan, training

    bed = options.bed
    options.work.mkdir(parents=True, exist_ok=True)
    with (options.work / f"{bed}-{arm}-{seed}.lock").open("w") as lock:
        try:
            # The system releases the lock of a process that was killed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        done = {(r["bed"], r["arm"], r["seed"]) for r in training.read(options.results)}
        if (bed, arm, seed) in done:
            return
        if keras.backend.backend() == "torch":
            import torch

            torch.set_num_threads(1)  # the order of sums depends on it
        data = plan.BEDS[bed].load(options.data_dir, seed)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the drag of w = 1
            rows = training.train(bed, arm, seed, data, options.work, options.epochs)
        training.append(rows, options.results)
        # No test figure is printed: see the protocol.
        seconds = time.perf_counter() - start
        print(f"{bed} {arm} seed {seed}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
