"""Trains many runs: one after the other in this process, or at the same time by Ray.

The folder of a run is its only state: a finished run is not trained again, a stopped
one continues by the same command, and a failed one does not affect the others.
"""

import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes.progress import Progress, console
from recipes.runs import Run
from recipes.tasks import DivergenceError, Pool, RunError, Task

ONE = Pool()
# Passed on to the workers of Ray. One CPU for each run: one thread.
_KEPT = ("KERAS_BACKEND", "KERAS_HOME", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class Job(NamedTuple):
    """A run and its task."""

    run: Run
    task: Task


class Ended(NamedTuple):
    """How a job ended: `error` is None, or a sentence on what went wrong.

    `diverged` is whether the loss or the logits are not finite, which the same command
    would find again.
    """

    job: Job
    error: str | None = None
    diverged: bool = False


def train_all(
    jobs: Sequence[Job],
    progress: Progress,
    pool: Pool = ONE,
    report: Callable[[Ended], None] = lambda ended: None,
    loaded: dict[Any, Any] | None = None,
) -> list[Ended]:
    """Trains all jobs, and returns how they ended, in that order.

    An error of a run is reported, its traceback is in `error.log` of its folder, and
    the next run is trained.

    Args:
        jobs: the jobs, in the order in which they are started.
        progress: shows the epochs of runs in this process, and the end of all.
        pool: how many runs are trained at a time, and on what.
        report: called with each job as soon as it has ended.
        loaded: data that is read already, by `training.data_key`. Runs that are
            finished must then have been trained on it.
    """
    if pool.gpus_per_run and pool.jobs == 1:
        raise RunError(
            "`gpus-per-run` must be 0 for one run at a time, which uses all GPUs. "
            f"Received: {pool.gpus_per_run:g}"
        )
    ended = []
    train = _one_by_one if pool.jobs == 1 else _by_ray
    for one in train(jobs, progress, pool, loaded or {}):
        if one.error is not None:
            progress.end(one.job.run.name, f"failed: {one.error}")
        ended.append(one)
        report(one)
    return ended


def _one_by_one(
    jobs: Sequence[Job], progress: Progress, _: Pool, loaded: dict[Any, Any]
) -> Iterator[Ended]:
    from recipes import training

    for run, task in jobs:
        try:
            key = training.data_key(task)
            if key not in loaded and not run.finished:
                loaded = {key: training.read_data(task)}  # the next may share it
            training.train(run, task, progress, dataset=loaded.get(key))
        except Exception as error:
            diverged = isinstance(error, DivergenceError)
            yield Ended(Job(run, task), _told(run, error), diverged)
        else:
            yield Ended(Job(run, task))


def _told(run: Run, error: Exception) -> str:
    if isinstance(error, RunError):
        return str(error)
    with contextlib.suppress(OSError):
        run.folder.mkdir(parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(error))
        (run.folder / "error.log").write_text(text, encoding="utf-8")
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words} ({run.folder / 'error.log'})"


def _by_ray(
    jobs: Sequence[Job], progress: Progress, pool: Pool, loaded: dict[Any, Any]
) -> Iterator[Ended]:
    done = [job for job in jobs if job.run.finished]
    yield from _one_by_one(done, progress, pool, loaded)
    jobs = [job for job in jobs if not job.run.finished]
    if not jobs:
        return
    with _cluster(pool.jobs) as ray:
        # A failed run is not tried again until the user asks for it.
        options = {"num_cpus": 1, "num_gpus": pool.gpus_per_run, "max_retries": 0}
        remote = ray.remote(**options)(_train)
        waiting = list(jobs)
        running: dict[Any, Job] = {}
        try:
            while waiting or running:
                while waiting and len(running) < pool.jobs:
                    job = waiting.pop(0)
                    # Other directories must find the same files.
                    there = Run(job.run.folder.absolute())
                    reference = remote.remote(os.getcwd(), there, job.task)
                    running[reference] = job
                (ended,), _ = ray.wait(list(running))
                job = running.pop(ended)
                try:
                    error, diverged = ray.get(ended)
                except ray.exceptions.RayError as failure:  # such as a lack of memory
                    error, diverged = " ".join(str(failure).split()), False
                if error is None:
                    progress.end(job.run.name, "trained")
                yield Ended(job, error, diverged)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _train(directory: str, run: Run, task: Task) -> tuple[str | None, bool]:
    """Trains a run in a process of Ray; returns `error` and `diverged`."""
    os.chdir(directory)
    with Progress(console(quiet=True)) as progress:
        (ended,) = _one_by_one([Job(run, task)], progress, ONE, {})
    return ended.error, ended.diverged


@contextlib.contextmanager
def _cluster(jobs: int) -> Iterator[Any]:
    """Gives the module `ray`: with the cluster at RAY_ADDRESS, or a new one here."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"`jobs` of {jobs} need Ray: `pip install ray`.") from error
    import keras

    address = os.environ.get("RAY_ADDRESS")
    here = [os.getcwd(), str(Path(__file__).resolve().parents[1])]
    paths = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    variables |= {"KERAS_BACKEND": keras.backend.backend(), "PYTHONPATH": paths}
    variables |= dict.fromkeys(_THREADS, "1")
    options: dict[str, Any] = {} if address else {"num_cpus": jobs}
    try:
        host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
        if colon:  # Ray itself would try for minutes where nothing listens
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(
            address=address or "local",
            logging_level="ERROR",
            log_to_driver=False,
            include_dashboard=None if address else False,
            runtime_env={"env_vars": variables},
            **options,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = f"at RAY_ADDRESS={address}" if address else "on this machine"
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"Ray cannot be used {where}: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
