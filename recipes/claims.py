"""The page of the paper's claims: `python -m recipes claims`."""

import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from recipes.paper import claim_checks as checks
from recipes.paper.claim_checks import Finding
from recipes.progress import console
from recipes.runs import Run
from recipes.tasks import RunError

PAGE = Path(__file__).with_name("CLAIMS.md")

CHECKS: dict[str, Callable[[Sequence[Run]], Finding]] = {
    check.__name__: check
    for check in (
        *(checks.focal_gradient, checks.beta, checks.ece_bound),
        *(checks.selective_fallback, checks.over_and_underconfidence),
        *(checks.figure_and_table, checks.au_ordering, checks.table_a, checks.meta_cal),
        *(checks.released, checks.released_training, checks.matrix),
    )
}
# Networks that are trained for a claim on digits: losses, and changes of settings. One
# seed of a loss that stalls gives other figures on each backend.
_SEEDS = {"released_training": 3}
_TRAINED: dict[str, tuple[tuple[str, ...], ...]] = {
    "meta_cal": (("xe",),),
    "released_training": (
        ("xe",),
        ("au", "loss.smoothing=0.1"),
        ("au", "loss.weight_gradient=1", "loss.smoothing=0.1"),
        ("au_released",),
    ),
}

_HEAD = """\
# The paper's claims

Each section is written by `python -m recipes claims NAME`, and the page by
`python -m recipes claims --page`. The verdicts are holds, holds under a condition, does
not hold, undecided, and could not be tested here; a rule computes each from figures.
Labels such as `combined_acc_ece` are those of the paper's source. β, τ, κ and ν are its
letters; w is the share of β's gradient that is kept: 1 in the paper, 0 by default here.
`ece_bound` also draws ECE against the number of bins. `meta_cal` trains a network on
digits with wrong labels, and takes other networks by `--run FOLDER`: here the CIFAR-10
networks of He et al. with weights trained by others (`resnet20.th`, `resnet56.th` of
https://github.com/akamaster/pytorch_resnet_cifar10, accuracy 91.73 and 93.39), made by
`python -m recipes train --dataset cifar10 --data-dir DATA --model resnet20 --loss xe
--pretrained resnet20.th --epochs 0 --set mean=0.485,0.456,0.406
--set std=0.229,0.224,0.225 --out resnet20`. All training images of CIFAR-10 have been
used for these weights, so half of the test images stand in for images held out.
"""


def check_claims(
    names: Sequence[str],
    out: str | os.PathLike[str],
    *,
    runs: Sequence[Run] = (),
    page: bool = False,
) -> None:
    """Checks claims, and prints the verdicts.

    Args:
        names: names in `CHECKS`; empty for all.
        out: folder for pictures, and for the network that `meta_cal` trains.
        runs: finished runs, for the claims on trained networks.
        page: whether to update the sections of CLAIMS.md.
    """
    output, folder = console(), Path(out)
    if unknown := [name for name in names if name not in CHECKS]:
        listed = ", ".join(CHECKS)
        raise RunError(f"there is no claim {unknown[0]!r}. The claims are {listed}.")
    sections = {}
    for name in names or CHECKS:
        trained = [
            _digits(folder, seed, *one)
            for one in _TRAINED.get(name, ())
            for seed in range(_SEEDS.get(name, 1))
        ]
        found = CHECKS[name]([*trained, *(runs if name == "meta_cal" else ())])
        sections[name] = section(name, found)
        output.print(sections[name], soft_wrap=True)
        if found.figure is not None:
            folder.mkdir(parents=True, exist_ok=True)
            found.figure.savefig(folder / f"{name}.png", dpi=120)
            output.print(f"{folder / name}.png")
    if page:
        there = page_sections() if PAGE.exists() else {}
        texts = ({**there, **sections}.get(name) for name in CHECKS)
        PAGE.write_text("\n".join([_HEAD, *filter(None, texts)]), encoding="utf-8")


def section(name: str, found: Finding) -> str:
    """Returns the section of the page on a claim."""
    claim = " ".join((CHECKS[name].__doc__ or "").split())
    parts = [f"## {name}", f"{claim} **Verdict: {found.verdict}.**"]
    parts += [f"*Rule:* {found.rule}", found.text]
    if found.table is not None:
        parts.append(found.table.markdown())
    return "\n\n".join(parts) + "\n"


def page_sections() -> dict[str, str]:
    """Returns the sections of CLAIMS.md by name."""
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^(?=## )", text, flags=re.M)[1:]
    return {part[3:].split("\n")[0]: part.rstrip("\n") + "\n" for part in parts}


def _digits(folder: Path, seed: int, loss: str, *changes: str) -> Run:
    """Returns a network that is trained on digits with wrong labels."""
    from recipes import training
    from recipes.tasks import Task

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the drag of AU as the paper writes it
        task = Task("digits", "cnn", loss, set=changes, seed=seed)
        return training.trained(folder, task)
