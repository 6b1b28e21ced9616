"""Progress of runs: bars in a terminal, plain lines elsewhere."""

import math
from collections.abc import Mapping
from typing import Any


def console(**options: Any) -> Any:
    """Returns a `rich` console that prints text as it is, without markup."""
    try:
        from rich.console import Console
    except ImportError as error:
        raise ImportError(
            'recipes need rich: `pip install -e ".[recipes]"`.'
        ) from error
    return Console(highlight=False, markup=False, **options)


def duration(seconds: float) -> str:
    """Returns a duration in the units of which there are few.

    Example:
    >>> [duration(seconds) for seconds in (0.4, 5400, 181_440_000)]
    ['0.4 s', '1.5 hours', '50,400 hours (2,100 days)']
    """
    for unit, size, most in (("s", 1, 60), ("minutes", 60, 60), ("hours", 3600, 48)):
        if (count := seconds / size) < most:
            return f"{count:.2g} {unit}"
    return f"{count:,.0f} hours ({count / 24:,.{1 if count < 2400 else 0}f} days)"


class Progress:
    """Shows the progress of runs.

    Args:
        output: a `rich` console.
        runs: the number of runs. For several, a terminal shows a bar for all of them,
            and other outputs get one line for each run instead of each epoch.
    """

    def __init__(self, output: Any, runs: int = 1) -> None:
        self._output = output
        self._runs, self._done = runs, 0
        self._bars: Any = None

    def __enter__(self) -> "Progress":
        if self._output.is_terminal:
            from rich import progress

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(bar_width=20),
                progress.TextColumn("{task.fields[count]}"),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}", markup=False),
                console=self._output,
            )
            if self._runs > 1:
                self._all = self._bars.add_task(
                    "all runs", total=self._runs, count=f"0/{self._runs}", note=""
                )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def start(self, name: str, epochs: int, done: int) -> None:
        """Begins a run after some epochs are done."""
        self._name, self._epochs, self._epoch = name, epochs, done
        if done and self._runs == 1:
            self._output.print(f"{name} continues after epoch {done} of {epochs}")
        if self._bars is not None:
            self._one = self._bars.add_task(
                name, total=epochs, completed=done, count=f"{done}/{epochs}", note=""
            )

    def within(self, share: float) -> None:
        """Shows the share of the present epoch that is done."""
        if self._bars is not None:
            self._bars.update(self._one, completed=self._epoch + share)

    def epoch(self, row: Mapping[str, float]) -> None:
        """Ends an epoch."""
        self._epoch = int(row["epoch"])
        count = f"{self._epoch}/{self._epochs}"
        names = ("loss", "val_loss", "val_accuracy")
        known = (name for name in names if not math.isnan(row[name]))
        note = ", ".join(f"{name} {row[name]:.3f}" for name in known)
        if self._bars is not None:
            self._bars.update(self._one, completed=self._epoch, count=count, note=note)
        elif self._runs == 1:
            self._output.print(
                f"{self._name} epoch {count}: {note}, {row['seconds']:.1f} s"
            )

    def end(self, name: str, note: str) -> None:
        """Ends a run."""
        self._done += 1
        if self._bars is None:
            count = f"[{self._done}/{self._runs}] " if self._runs > 1 else ""
            self._output.print(f"{count}{name}: {note}", soft_wrap=True)
            return
        for task in self._bars.tasks:
            if self._runs == 1 or task.id != self._all:
                self._bars.remove_task(task.id)
        if self._runs > 1:
            count = f"{self._done}/{self._runs}"
            self._bars.update(self._all, completed=self._done, count=count)
        self._bars.console.print(f"{name}: {note}")
