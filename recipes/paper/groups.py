"""Runs in groups, each of which is one row of the paper's tables."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recipes import settings
from recipes.losses import RELEASED, TITLES, column_of
from recipes.paper import published
from recipes.runs import Run, flat
from recipes.tables import remarks, setting_of

_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}
MODELS = {
    "resnet50": "ResNet50",
    "resnet110": "ResNet110",
    "wrn28_10": "WRN",
    "preresnet56": "PreResNet56",
    "vit_small": "ViT-Small",
    "swin_tiny": "Swin-Tiny",
}
RELEASED_LOSSES = "released losses"
_NOT_SETUP = (
    "dataset",
    "model",
    "loss",
    "source",
    "label_noise",
    "pretrained",
    "stand_in",
)


def dataset_title(dataset: str) -> str:
    """Returns the name that the paper prints, or the name of a folder."""
    if dataset.startswith("folder:"):
        return os.path.basename(os.path.normpath(dataset))
    return _DATASETS.get(dataset, dataset)


@dataclass(frozen=True)
class Group:
    """Runs of a data set and a model that differ only in the loss and the seed.

    Attributes:
        dataset: name of the data set.
        model: name of the model.
        setup: how the training differs from the paper's, in words. Released losses
            have a group of their own.
        runs: the runs by loss, then by the arguments of the loss as JSON.
    """

    dataset: str
    model: str
    setup: str = ""
    runs: Mapping[str, Mapping[str, list[Run]]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def title(self) -> str:
        """The model, and how its training differs from the paper's."""
        name = MODELS.get(self.model, self.model)
        return f"{name} ({self.setup})" if self.setup else name

    def paper(
        self, table: str, posthoc: str, metric: str, loss: str
    ) -> published.Figure | None:
        """Returns the number that the paper prints, if there is one."""
        key = published.Key(table, self.dataset, self.model, posthoc, metric, loss)
        return published.figures().get(key)

    def chosen(self, loss: str, notes: list[str]) -> list[Run]:
        """Returns the runs with one choice of the loss's arguments.

        The choice is the paper's, or the only one there is.

        Args:
            loss: one of `recipes.losses.NAMES`.
            notes: receives a note on runs that differ from the paper or are left out.
        """
        candidates = self.runs.get(loss, {})
        released = RELEASED_LOSSES in self.setup and candidates
        name = f"{loss}_released" if released else loss
        paper = _plain(settings.settings(self.dataset, self.model, name).loss)
        changes = {
            arguments: ", ".join(
                f"{name} {value}"
                for name, value in json.loads(arguments).items()
                if value != paper.get(name)
            )
            for arguments in candidates
        }
        changed = "; ".join(filter(None, changes.values()))
        place = f"{dataset_title(self.dataset)}, {self.title}, {TITLES[loss]}"
        choice = [arguments for arguments, words in changes.items() if not words]
        if len(candidates) == 1:
            choice = list(candidates)
            if changed:
                notes.append(f"{place}: trained with {changed}.")
        elif choice and changed:
            notes.append(f"{place}: runs with {changed} are left out.")
        elif candidates and not choice:
            notes.append(
                f"{place}: left empty, because no run has the paper's arguments: "
                f"{changed}."
            )
        return candidates[choice[0]] if choice else []


def groups(runs: Iterable[Run]) -> list[Group]:
    """Returns the groups of runs, in the order of their data sets and models."""
    pairs: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        config = run.config()
        pairs.setdefault((config["dataset"], config["model"]), []).append(run)
    found = []
    for pair, members in pairs.items():
        configs = [run.config() for run in members]
        setups: dict[str, Any] = {}
        for run, config, words in zip(
            members, configs, _in_words(configs), strict=True
        ):
            column = column_of(config["loss"])
            if config["loss"] in RELEASED:
                words = ", ".join(filter(None, [RELEASED_LOSSES, words]))
            if pair not in published.pairs():
                words = ", ".join(filter(None, ["not in the paper", words]))
            by_loss = setups.setdefault(words, {}).setdefault(column, {})
            by_loss.setdefault(json.dumps(config["settings"]["loss"]), []).append(run)
        found += [Group(*pair, words, by_loss) for words, by_loss in setups.items()]
    return found


def _in_words(configs: list[dict[str, Any]]) -> list[str]:
    """Returns how each training differs from the paper's, and from the others."""
    setups = [
        {
            name: value
            for key, value in setting_of(config).items()
            if (name := key.removeprefix("settings.")) not in _NOT_SETUP
            and not name.startswith("loss.")
            and name != "pretrained.sha256"
        }
        for config in configs
    ]
    described = []
    for config, setup in zip(configs, setups, strict=True):
        usual = _usual(config)
        differences = [
            f"{key} {json.dumps(value)}".replace('"', "")
            for key, value in setup.items()
            if (
                value != usual[key]
                if key in usual
                else any(other.get(key) != value for other in setups)
            )
        ]
        described.append(", ".join([*remarks(config), *differences]))
    return described


def _usual(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the paper's settings, scaled to the number of epochs of a run."""
    paper = settings.settings(config["dataset"], config["model"], "xe")
    epochs = config["settings"].get("epochs", paper.epochs)
    scaled = settings.with_epochs(paper, epochs)
    usual = _plain(dataclasses.asdict(dataclasses.replace(scaled, epochs=paper.epochs)))
    return {**flat(usual), "subset": None}


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields as a JSON file would restore them."""
    plain: dict[str, Any] = json.loads(json.dumps(fields))
    return plain
