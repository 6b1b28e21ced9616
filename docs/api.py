"""Writes the pages of the API reference, for mkdocstrings.

A class is shown with all its documented public members. Members of a base class on the
same page are linked.
"""

import functools
import inspect
import json
import re
from importlib import import_module
from typing import Any

from formulas import typeset

PACKAGES = ["losses", "metrics", "calibrators", "selective", "conformal", "report"]
PACKAGES += ["callbacks", "functional", "csf", "stacks", "plots"]
# Members that only the library calls.
_INTERNAL = {
    "AnswerLayer": "calibrated compute_mask decided",
    "Batch": "checked checked_weight of smoothed",
    "Calibrator": "fitted_copy outputs_of",
    "ClassificationLoss": "call synchronized",
    "ClassificationMetric": "build_state histogram",
    "ConfidenceScore": "bounded check_classes flaw log_odds log_odds_of_logits "
    "of_log_p refuse_missing scores serialize squashed squashed_support",
    "DualFocalLoss": "rival",
    "Evaluation": "cuts drawn few_groups meaning part parts resample truth",
    "Labelled": "of",
    "Policy": "cuts of_outputs one_unit was_fitted_on",
}
# Members to implement or call in a subclass: only the page of the base class has them.
_FOR_SUBCLASSES = {
    "Calibrator": "get_config",
    "ClassificationLoss": "sample_losses",
    "ClassificationMetric": "accumulate add_sums class_wise compute create_state "
    "direction separate total update",
    "RankingMetric": "of_ranking",
    "ReweightedLoss": "base_losses weights",
}


def pages() -> dict[str, str]:
    """Returns the page of each package, and `"index"`, by name."""
    return {"index": _start_page(), **{name: _page(name) for name in PACKAGES}}


def _public_names(package: str) -> dict[str, Any]:
    """Returns the public classes and functions of a package, by name.

    The docstring of the package tells of its constants and instances.
    """
    module = import_module(f"keras_selcal.{package}")
    names = getattr(module, "__all__", None) or [
        key
        for key, thing in vars(module).items()
        if getattr(thing, "__module__", None) == module.__name__ and key[0] != "_"
    ]
    things = {name: getattr(module, name) for name in sorted(names, key=str.lower)}
    return {
        name: thing
        for name, thing in things.items()
        if inspect.isclass(thing) or inspect.isroutine(thing)
    }


def members(cls: type) -> dict[str, type]:
    """Returns the documented public members of a class, with where each is defined."""
    hidden: set[str] = set()
    for base in cls.__mro__:
        hidden |= {*_INTERNAL.get(base.__name__, "").split()}
        if base is not cls:
            hidden |= {*_FOR_SUBCLASSES.get(base.__name__, "").split()}
    found: dict[str, type] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("keras_selcal"):
            continue
        for name, value in vars(base).items():
            value = getattr(value, "__func__", value)
            kinds = (property, functools.cached_property)
            member = inspect.isroutine(value) or isinstance(value, kinds)
            public = name[0] != "_" or name == "__call__"
            if member and public and value.__doc__ and name not in hidden:
                found.setdefault(name, base)
    return found


def _page(package: str) -> str:
    """Returns a page with every public name of a package."""
    # Markdown wants an empty line before a list.
    head = inspect.getdoc(import_module(f"keras_selcal.{package}")) or ""
    head = typeset(re.sub(r":\n- ", ":\n\n- ", head))
    lines = [f"# keras_selcal.{package}", "", head, ""]
    things = _public_names(package)
    shown = {thing: name for name, thing in things.items()}
    for name, thing in things.items():
        lines += [f"::: {thing.__module__}.{name}"]
        if not inspect.isclass(thing):
            lines += [""]
            continue
        found = members(thing)
        # Members of a base class on the same page are described there.
        elsewhere = {
            key: base
            for key, base in found.items()
            if base is not thing and base in shown
        }
        here = [key for key in found if key not in elsewhere]
        inherited = json.dumps(bool(here))
        lines += ["    options:", f"      inherited_members: {inherited}"]
        lines += [f"      members: {json.dumps(here or False)}", ""]
        for base in dict.fromkeys(elsewhere.values()):
            path = f"{base.__module__}.{base.__name__}"
            keys = [key for key, owner in elsewhere.items() if owner is base]
            links = ", ".join(f"[`{key}`][{path}.{key}]" for key in keys)
            lines += [f"From [`{base.__name__}`][{path}]: {links}.", ""]
    return "\n".join(lines)


def _start_page() -> str:
    """Returns the start page of the reference: every public name."""
    lines = ["# API reference", ""]
    lines += ["Every public class can also be imported from `keras_selcal`.", ""]
    lines += ["| package | what it holds | names |", "|---|---|---|"]
    for package in PACKAGES:
        doc = inspect.getdoc(import_module(f"keras_selcal.{package}")) or ""
        names = ", ".join(
            f"[`{name}`][{thing.__module__}.{name}]"
            for name, thing in _public_names(package).items()
        )
        about = " ".join(doc.split("\n\n")[0].split()).rstrip(".")
        lines.append(f"| [`{package}`]({package}.md) | {about} | {names} |")
    return "\n".join(lines) + "\n"
