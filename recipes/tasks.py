"""What a run is to do: as asked for by a user, and in full."""

import dataclasses
import hashlib
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

import keras_selcal
from keras_selcal._validation import check_choice
from recipes import models, settings
from recipes.data.digits import LABEL_NOISE
from recipes.request import Request, RunError
from recipes.settings import Settings

_BACKENDS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "torch": ("torch",)}


@dataclass(frozen=True, kw_only=True)
class Task(Request):
    """A request with all that follows from it.

    Args:
        settings: of training.
        marks: parts of the run's name that say what differs from the defaults.
    """

    settings: Settings
    marks: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        """Returns all that the run depends on, except for the data itself."""
        pretrained = None if self.pretrained is None else _file_digest(self.pretrained)
        return {
            "dataset": self.dataset,
            "label_noise": self.label_noise,
            "subset": self.subset,
            "model": self.model,
            "pretrained": pretrained,
            **({} if self.preset is None else {"preset": self.preset}),
            **({"stand_in": True} if self.stand_in else {}),
            "loss": self.loss,
            "seed": self.seed,
            "settings": dataclasses.asdict(self.settings),
            "dtype": keras.config.dtype_policy().name,
            "backend": keras.backend.backend(),
            "versions": versions(),
        }


def run_name(task: Task) -> str:
    """Returns the name of a run's folder.

    Example:
    >>> run_name(task_of(Request("cifar10", "resnet50", "au", epochs=20)))
    'cifar10-resnet50-au-msp-seed0-epochs20'
    """
    dataset = task.dataset
    if dataset.startswith("folder:"):
        dataset = os.path.basename(os.path.normpath(dataset))
    marks = list(task.marks)
    if task.subset is not None:
        marks.append(f"subset{task.subset}")
    if task.label_noise not in (None, LABEL_NOISE):
        marks.append(f"noise{task.label_noise:g}")
    if task.pretrained is not None:
        marks.append("pretrained")
    if task.preset is not None:
        marks.append(os.path.basename(os.path.normpath(task.preset)))
    if task.stand_in:
        marks.append("stand_in")
    csf = task.settings.loss.get("csf")
    parts = [dataset, task.model, task.loss, *([csf] if csf else [])]
    name = "-".join([*parts, f"seed{task.seed}", *marks])
    return "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)


def task_of(request: Request) -> Task:
    """Returns the task that a request describes, with all settings.

    Example:
    >>> task_of(Request("cifar10", "resnet50", "au")).settings.loss["coverage"]
    0.88
    """
    marks = []
    _check_start(request)
    try:
        chosen = settings.settings(
            request.dataset,
            request.model,
            request.loss,
            csf=request.csf,
            weight_gradient=request.changes().get("loss.weight_gradient", "0"),
            from_scratch=request.from_scratch,
        )
        if request.csf is not None and "csf" not in chosen.loss:
            raise RunError(f"`csf` is for the losses au and aurc, not {request.loss}.")
        if request.epochs is not None and request.epochs != chosen.epochs:
            chosen = settings.with_epochs(chosen, request.epochs)
            marks.append(f"epochs{request.epochs}")
        changes = list(request.set)
        if request.batch_size is not None:
            changes.append(f"batch_size={request.batch_size}")
        for change in changes:
            key, _, value = change.partition("=")
            chosen = settings.override(chosen, key, value)
            marks.append(f"{key.rpartition('.')[2]}{value}")
        if request.stand_in:
            check_choice("model", request.model, tuple(models.STAND_INS))
            source = f"{chosen.source}; a small stand-in for the network"
            chosen = dataclasses.replace(chosen, source=source)
    except ValueError as error:
        raise RunError(str(error)) from error
    noise = request.label_noise
    if request.dataset == "digits":
        noise = LABEL_NOISE if noise is None else noise
    elif noise is not None:
        raise RunError(f"`label-noise` is for digits, not {request.dataset}.")
    fields = {**vars(request), "label_noise": noise, "settings": chosen}
    return Task(**fields, marks=tuple(marks))


def _check_start(request: Request) -> None:
    starts = (request.from_scratch, request.pretrained, request.preset)
    if sum(map(bool, starts)) > 1:
        names = "--pretrained, --preset and --from-scratch"
        raise RunError(f"pass at most one of {names}.")
    if request.stand_in and (request.pretrained or request.preset):
        raise RunError("a stand-in has no pretrained weights.")
    if request.preset is not None and not request.model.startswith("keras_"):
        raise RunError(f"`preset` is for keras_cv_* and keras_hub_*: {request.model}.")
    start = request.from_scratch or request.pretrained is not None
    if request.model in settings.TRANSFORMERS and not start:
        raise RunError(fine_tuned(request.model, "FILE"))


def fine_tuned(model: str, form: str) -> str:
    """Returns why a transformer cannot start; `form` is the value of --pretrained."""
    return (
        f"the paper fine-tunes {model}: pass its pretrained weights by --pretrained "
        f"{form}, or --from-scratch to start from random weights."
    )


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that results depend on."""
    backend = keras.backend.backend()
    packages = ("keras", "numpy", *_BACKENDS.get(backend, (backend, "jaxlib")))
    found = {"keras_selcal": keras_selcal.__version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _file_digest(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}.") from error
    return {"file": Path(path).name, "sha256": digest.hexdigest()}
