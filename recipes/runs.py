"""A run is a folder that one process at a time writes, with complete files only.

| file                  | content                                                  |
|-----------------------|----------------------------------------------------------|
| `config.json`         | all that is needed to repeat the run, versions included  |
| `history.csv`         | losses, accuracies, learning rate, seconds of each epoch |
| `val.npz`, `test.npz` | `logits` (n, k) and `labels` (n,) of the chosen model    |
| `last-val.npz`, …     | those of the model after the last epoch                  |
| `train.npz`           | those of training images; `train-epoch40.npz`, if asked  |
| `model.keras`         | the chosen model                                         |
| `environment.json`    | machine and timing; written last                         |
| `checkpoint/`         | where an interrupted run continues; deleted at the end   |
"""

import contextlib
import csv
import errno
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.tasks import RunError

CONFIG, HISTORY, ENVIRONMENT = "config.json", "history.csv", "environment.json"
MODEL, SPLITS = "model.keras", ("val", "test")

_FIELDS = ("dataset", "model", "loss", "seed", "settings")
_OTHER_FOLDER = "Choose another folder by --out, or delete this one."
# Errors of readers whose file has unexpected content.
_BROKEN = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError),
    *(csv.Error, zipfile.BadZipFile),
)


class Predictions(NamedTuple):
    """Logits (n, k) and labels (n,) of a split."""

    logits: np.ndarray
    labels: np.ndarray


@dataclass
class Checkpoint:
    """The state of training after `epoch` epochs.

    Attributes:
        epoch: how many epochs are done.
        variables: of model and optimizer, random states included.
        history: one row an epoch.
        best_epoch: the epoch (from 1) with the lowest validation loss after warm-up.
        best: the model's variables after that epoch.
    """

    epoch: int = 0
    variables: list[np.ndarray] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int | None = None
    best: list[np.ndarray] | None = None


class Run:
    """The folder of a run.

    Args:
        folder: its path. `lock` creates it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.name = self.folder.name
        self._checkpoints = self.folder / "checkpoint"
        self._kept_best: int | None = None

    @property
    def finished(self) -> bool:
        """Whether every file is there and can be read."""
        return self.problem() is None

    def problem(self) -> str | None:
        """Returns why the run is not finished, or None if it is."""
        try:
            self.config(), self.environment()
            for split in SPLITS:
                self.predictions(split)
            with _told(self.folder / MODEL, "read"):
                zipfile.ZipFile(self.folder / MODEL).close()
            if not self.history() and self.config()["settings"].get("epochs"):
                raise RunError(f"{self.folder} has no {HISTORY}.")
        except RunError as error:
            return str(error).removesuffix(".")
        return None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run for this process; the lock ends with the process."""
        import fcntl

        with _told(f"run {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Never deleted: a second file of that name would be a second lock.
            file = open(self.folder / ".lock", "a+")  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise RunError(f"cannot lock run {self.folder}: {error}") from error
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise RunError(
                    f"run {self.folder} is in use by process {holder}: wait for it, "
                    "or choose another folder by --out."
                ) from None
            with _told(f"run {self.folder}"):
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
                self._sweep()
            yield

    def _sweep(self) -> None:
        """Removes what a killed process has left behind."""
        for folder in (self.folder, self._checkpoints):
            for path in folder.glob(".partial-*"):
                path.unlink()
        if self.finished and self._checkpoints.is_dir():
            shutil.rmtree(self._checkpoints)

    # --- Configuration and results --------------------------------------------------

    def claim(self, config: Mapping[str, Any]) -> None:
        """Writes the configuration, or refuses a folder that has another one.

        A finished run may be asked for with other versions of the libraries.
        """
        wanted: dict[str, Any] = json.loads(json.dumps(config))
        if not (self.folder / CONFIG).exists():
            results = [ENVIRONMENT, MODEL, *(f"{split}.npz" for split in SPLITS)]
            present = [name for name in results if (self.folder / name).exists()]
            if present:
                raise RunError(
                    f"run {self.folder} has {', '.join(present)} but no {CONFIG}. "
                    f"{_OTHER_FOLDER}"
                )
            self.load_checkpoint(wanted)
            self.write_json(CONFIG, wanted)
            return
        found = self.config()
        if self.finished:
            # Its results no longer depend on versions; data need not be read again.
            late = ("versions", *(["data"] if wanted.get("data") is None else []))
            found, wanted = (
                {key: value for key, value in one.items() if key not in late}
                for one in (found, wanted)
            )
        there, here = flat(found), flat(wanted)
        differing = [
            f"{key} is {_shown(there, key)} there and {_shown(here, key)} here"
            for key in dict.fromkeys([*there, *here])
            if _shown(there, key) != _shown(here, key)
        ]
        if differing:
            raise RunError(
                f"run {self.folder} was started with another configuration: "
                f"{'; '.join(differing)}. {_OTHER_FOLDER}"
            )

    def config(self) -> dict[str, Any]:
        """Returns `config.json`."""
        config = self.read_json(CONFIG)
        if missing := [key for key in _FIELDS if key not in config]:
            path = self.folder / CONFIG
            raise RunError(f"cannot read {path}: it has no {', '.join(missing)}.")
        return config

    def environment(self) -> dict[str, Any]:
        """Returns `environment.json`."""
        return self.read_json(ENVIRONMENT)

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns one of the run's JSON files."""
        path = self.folder / name
        if not self.folder.is_dir():
            raise RunError(f"there is no run {self.folder}.")
        if not path.exists():
            missing = "is not finished" if name == ENVIRONMENT else "is not a run"
            raise RunError(f"{self.folder} {missing}: it has no {name}.")
        with _told(path, "read"):
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError(f"it holds a {type(content).__name__}, not an object")
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes one of the run's JSON files."""
        with writing(self.folder / name) as path:
            text = json.dumps(content, indent=2, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")

    def write_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Writes `history.csv`."""
        with (
            writing(self.folder / HISTORY) as path,
            open(path, "w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def history(self) -> list[dict[str, float]]:
        """Returns the rows of `history.csv`, none before the first epoch."""
        path = self.folder / HISTORY
        if not path.exists():
            return []
        with _told(path, "read"), open(path, newline="", encoding="utf-8") as file:
            names, *rows = csv.reader(text := file.readlines())
            if not text[-1].endswith("\n") or any(len(r) != len(names) for r in rows):
                raise ValueError("a row is incomplete")
            return [dict(zip(names, map(float, row), strict=True)) for row in rows]

    def write_predictions(self, split: str, predictions: Predictions) -> None:
        """Writes logits and labels of a split."""
        with writing(self.folder / f"{split}.npz") as path:
            np.savez(
                path,
                logits=np.asarray(predictions.logits, "float32"),
                labels=np.asarray(predictions.labels, "int32"),
            )

    def predictions(self, split: str) -> Predictions:
        """Returns logits and labels of `"val"`, `"test"` or `"train"`.

        `"last-val"` and `"last-test"` are those of the last epoch instead of the best.
        """
        self.environment()
        with _read_npz(self.folder / f"{split}.npz") as arrays:
            logits, labels = arrays["logits"], arrays["labels"]
            if logits.ndim != 2 or labels.shape != logits.shape[:1]:
                shapes = f"{logits.shape} and {labels.shape}"
                raise ValueError(f"logits and labels have the shapes {shapes}")
            return Predictions(logits, labels)

    def snapshots(self) -> dict[int, Predictions]:
        """Returns logits and labels of training images, by the epoch they are from."""
        names = {p.stem for p in self.folder.glob("train-epoch*.npz")}
        epochs = sorted(int(name.removeprefix("train-epoch")) for name in names)
        return {epoch: self.predictions(f"train-epoch{epoch}") for epoch in epochs}

    def save_model(self, model: Any) -> None:
        """Writes `model.keras`."""
        with writing(self.folder / MODEL) as path:
            model.save(path)

    def finish(self, environment: Mapping[str, Any]) -> None:
        """Marks the run as finished and deletes its checkpoint."""
        self.write_json(ENVIRONMENT, environment)
        self._sweep()

    # --- Checkpoint -----------------------------------------------------------------

    def save_checkpoint(self, state: Checkpoint, config: Mapping[str, Any]) -> None:
        """Writes the state, and the best variables if they are new.

        The state names the file of the best variables, so that the two always belong
        together, and carries a digest of the run's configuration.
        """
        with _told(self._checkpoints):
            self._checkpoints.mkdir(exist_ok=True)
        best = self._best(state.best_epoch)
        if state.best is not None and state.best_epoch != self._kept_best:
            with writing(best) as path:
                np.savez(path, *state.best)
            self._kept_best = state.best_epoch
        meta = {
            "epoch": state.epoch,
            "best_epoch": state.best_epoch,
            "history": state.history,
            "config": digest(config),
        }
        with writing(self._checkpoints / "last.npz") as path:
            np.savez(path, *state.variables, meta=np.array(json.dumps(meta)))
        for old in self._checkpoints.glob("best-*.npz"):
            if old != best:
                old.unlink()

    def load_checkpoint(self, config: Mapping[str, Any]) -> Checkpoint | None:
        """Returns the last state or None; refuses that of another configuration."""
        path = self._checkpoints / "last.npz"
        if not path.exists():
            return None
        with _read_npz(path) as arrays:
            meta = json.loads(str(arrays["meta"]))
            if meta.pop("config", None) != digest(config):
                raise RunError(
                    f"the checkpoint in {self.folder} is that of another "
                    f"configuration. {_OTHER_FOLDER}"
                )
            state = Checkpoint(**meta, variables=_numbered(arrays))
            if state.epoch != len(state.history):
                raise ValueError(f"epoch {state.epoch} has {len(state.history)} rows")
        if state.best_epoch is not None:
            with _read_npz(self._best(state.best_epoch)) as arrays:
                state.best = _numbered(arrays)
        self._kept_best = state.best_epoch
        return state

    def _best(self, epoch: int | None) -> Path:
        return self._checkpoints / f"best-{epoch}.npz"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives another name to write under, and moves the complete file to `path`."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        with _told(path):
            yield partial
            _sync(partial)
            os.replace(partial, path)
            _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def runs_in(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Returns the runs of some paths: folders of runs, or folders of such folders."""
    found: list[Run] = []
    for path in map(Path, paths):
        inner = sorted(config.parent for config in path.glob(f"*/{CONFIG}"))
        whole = (path / CONFIG).exists() or not inner
        found += [Run(path)] if whole else map(Run, inner)
    return found


@contextlib.contextmanager
def _told(what: object, doing: str = "write") -> Iterator[None]:
    """Turns errors of files into one line that names the file."""
    try:
        yield
    except (OSError, *_BROKEN) as error:
        if doing == "write" and not isinstance(error, OSError):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        reason = reason or type(error).__name__
        raise RunError(f"cannot {doing} {what}: {reason}.") from error


@contextlib.contextmanager
def _read_npz(path: Path) -> Iterator[Any]:
    with _told(path, "read"), np.load(path, allow_pickle=False) as arrays:
        yield arrays


def _numbered(arrays: Any) -> list[np.ndarray]:
    """Returns the arrays that were saved without a name, in their order."""
    count = sum(name.startswith("arr_") for name in arrays.files)
    return [arrays[f"arr_{index}"] for index in range(count)]


def _sync(path: Path) -> None:
    """Waits until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(config: Mapping[str, Any]) -> str:
    """Identifies a configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested fields by their dotted names.

    Example:
    >>> flat({"seed": 0, "loss": {"gamma": 2.0}})
    {'seed': 0, 'loss.gamma': 2.0}
    """
    fields: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            fields.update(flat(value, f"{prefix}{key}."))
        else:
            fields[f"{prefix}{key}"] = value
    return fields


def _shown(fields: Mapping[str, Any], key: str) -> str:
    return json.dumps(fields[key], ensure_ascii=False) if key in fields else "not given"
