"""Builds the parts of the site that are not written by hand.

These are the start page (the README), the experiment, the study, the claims, the
benchmarks, the changelog, the tutorials, the API reference, every picture of the page
on concepts, and what the code of the guides and tutorials prints and draws
(`docs/execute.py`). With `KERAS_SELCAL_QUICK` set, no code runs and nothing is drawn.
"""

import functools
import inspect
import json
import logging
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent

# Pages that are files of the repository, and the links to them.
_ELSEWHERE = {
    "index.md": "README.md",
    "experiment.md": "recipes/experiment/EXPERIMENT.md",
    "study.md": "recipes/STUDY.md",
    "claims.md": "recipes/CLAIMS.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
_GUIDES = [
    "calibrate.md",
    "abstain.md",
    "sets.md",
    "unknown.md",
    "scores.md",
    "ensembles.md",
    "drift.md",
    "binary.md",
    "segmentation.md",
    "losses.md",
    "metrics.md",
    "monitor.md",
    "report.md",
    "arrays.md",
    "devices.md",
    "recipes.md",
]
_API = ["losses", "metrics", "calibrators", "selective", "conformal", "report"]
_API += ["callbacks", "functional", "csf", "stacks", "plots"]
# Members that only the library calls.
_INTERNAL = {
    "AnswerLayer": "calibrated compute_mask decided",
    "Batch": "checked checked_weight of smoothed",
    "Calibrator": "fitted_copy outputs_of",
    "ClassificationLoss": "call synchronized",
    "ClassificationMetric": "build_state histogram",
    "ConfidenceScore": "bounded check_classes flaw log_odds log_odds_of_logits of_log_p "
    "refuse_missing scores serialize squashed squashed_support",
    "DualFocalLoss": "rival",
    "Evaluation": "cuts meaning parts resample truth",
    "Labelled": "of",
}
# Members to implement or call in a subclass: only the page of the base class has them.
_FOR_SUBCLASSES = {
    "Calibrator": "get_config",
    "ClassificationLoss": "sample_losses",
    "ClassificationMetric": "accumulate add_sums class_wise compute create_state "
    "direction grouped total update",
    "RankingMetric": "of_ranking",
    "ReweightedLoss": "base_losses weights",
}
_log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """Orders the pages; guides that the list does not know come last."""
    sys.path.insert(0, str(ROOT))
    written = {path.name for path in DOCS.glob("*.md")}
    special = {"concepts.md", "comparison.md"}
    guides = [name for name in _GUIDES if name in written]
    guides += sorted(written - set(guides) - special)
    tutorials = [f"tutorials/{path.stem}.md" for path in _tutorials()]
    benchmarks = {"Benchmarks": "benchmarks.md"}
    config.nav = [
        {"Start": "index.md"},
        {"Concepts": "concepts.md"},
        {"Tutorials": tutorials},
        {"Guides": guides},
        {"API": ["api/index.md", *({name: f"api/{name}.md"} for name in _API)]},
        {
            "Results": [
                *("experiment.md", "study.md", "claims.md"),
                *(benchmarks, "comparison.md"),
            ]
        },
        {"Project": ["contributing.md", "changelog.md"]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages and pictures."""
    import jupytext

    sys.path.insert(0, str(DOCS))
    from execute import with_outputs

    pages: dict[str, str | bytes] = {}
    for page, path in _ELSEWHERE.items():
        pages[page] = (ROOT / path).read_text("utf-8")
    run = {path.name: path.read_text("utf-8") for path in sorted(DOCS.glob("*.md"))}
    run["index.md"] = pages["index.md"]
    for path in _tutorials():
        run[f"tutorials/{path.stem}.md"] = _tutorial_page(path, config.repo_url)
        script = _install_cell(config.repo_url) + path.read_text("utf-8")
        notebook = jupytext.reads(script, fmt="py:percent")
        pages[f"tutorials/{path.stem}.ipynb"] = jupytext.writes(notebook, fmt="ipynb")
    _find_data()
    quick = bool(os.environ.get("KERAS_SELCAL_QUICK"))
    if quick:
        pages |= run
        run = {}
    for name, text in run.items():
        _log.info("Running the code of %s", name)
        try:
            pages |= with_outputs(name, text)
        except Exception as error:
            if "URL fetch failure" not in str(error):
                raise
            _log.info("%s is shown without outputs: %s", name, error)
            pages[name] = text
    pages["api/index.md"] = _api_start()
    for name in _API:
        pages[f"api/{name}.md"] = _api_page(name)
    pages |= _pictures(quick)
    for uri, content in pages.items():
        known = files.get_file_from_path(uri)
        if known is not None:
            files.remove(known)
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links at the pages of the site, and typesets formulas."""
    from formulas import typeset

    if page.file.src_uri in ("index.md", "concepts.md"):
        # The only pages of their tabs.
        page.meta["hide"] = ["navigation"]
    source = _ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    folder = (ROOT / source).parent
    up = "../" * page.file.src_uri.count("/")

    def replace(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if ":" in match[2] or not target:
            return match[0]
        path = (folder / target).resolve()
        for name, elsewhere in _ELSEWHERE.items():
            if path == ROOT / elsewhere:
                return f"[{match[1]}]({up}{name}{'#' * bool(anchor)}{anchor})"
        if path.is_relative_to(DOCS):
            target = f"{up}{path.relative_to(DOCS)}{'#' * bool(anchor)}{anchor}"
            return f"[{match[1]}]({target})"
        # A file of the repository that is not on the site.
        return match[1] if path.exists() else match[0]

    markdown = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", replace, markdown)
    return markdown if page.file.src_uri.startswith("api/") else typeset(markdown)


def _find_data() -> None:
    """Names the data of a tutorial, if they need not be downloaded."""
    data = Path(os.environ.get("KERAS_SELCAL_DATA", "")) / "text" / "clinc150.json"
    if data.is_file():
        os.environ.setdefault("CLINC150", str(data))


def _tutorials() -> list[Path]:
    return sorted((DOCS / "tutorials").glob("[!_]*.py"))


def _colab(name: str, repository: str | None) -> str:
    """Returns a link that opens a notebook in Colab, if the repository is on GitHub.

    The workflow that publishes the site puts the notebooks on the branch `notebooks`.
    """
    owner = (repository or "").rstrip("/").removeprefix("https://github.com/")
    if "/" not in owner or ":" in owner:
        return ""
    host = "https://colab.research.google.com/github"
    return f" · [Open in Colab]({host}/{owner}/blob/notebooks/{name}.ipynb)"


def _install_cell(repository: str | None) -> str:
    """Returns the cell by which a notebook installs the library from the repository."""
    if not repository:
        return ""
    package = f"keras-selcal[calibrators,examples] @ git+{repository}"
    return f'# %%\n# %pip install --quiet "{package}"\n\n'


def _tutorial_page(path: Path, repository: str | None) -> str:
    """Returns a script of cells (`# %%`) as Markdown."""
    parts: list[str] = []
    for cell in re.split(r"^# %%", path.read_text("utf-8"), flags=re.M)[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            parts.append(re.sub(r"^# ?", "", body, flags=re.M).strip())
            if len(parts) == 1:
                download = f"[Download the notebook]({path.stem}.ipynb)"
                parts.append(download + _colab(path.stem, repository))
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"


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


def _members(cls: type) -> dict[str, type]:
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


def _api_page(package: str) -> str:
    """Returns a page with every public name of a package."""
    from formulas import typeset

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
        members = _members(thing)
        # Members of a base class on the same page are described there.
        elsewhere = {
            key: base
            for key, base in members.items()
            if base is not thing and base in shown
        }
        here = [key for key in members if key not in elsewhere]
        inherited = json.dumps(bool(here))
        lines += ["    options:", f"      inherited_members: {inherited}"]
        lines += [f"      members: {json.dumps(here or False)}", ""]
        for base in dict.fromkeys(elsewhere.values()):
            path = f"{base.__module__}.{base.__name__}"
            keys = [key for key, owner in elsewhere.items() if owner is base]
            links = ", ".join(f"[`{key}`][{path}.{key}]" for key in keys)
            lines += [f"From [`{base.__name__}`][{path}]: {links}.", ""]
    return "\n".join(lines)


def _api_start() -> str:
    """Returns the start page of the reference: every public name."""
    lines = ["# API reference", ""]
    lines += ["Every public class can also be imported from `keras_selcal`.", ""]
    lines += ["| package | what it holds | names |", "|---|---|---|"]
    for package in _API:
        doc = inspect.getdoc(import_module(f"keras_selcal.{package}")) or ""
        names = ", ".join(
            f"[`{name}`][{thing.__module__}.{name}]"
            for name, thing in _public_names(package).items()
        )
        about = " ".join(doc.split("\n\n")[0].split()).rstrip(".")
        lines.append(f"| [`{package}`]({package}.md) | {about} | {names} |")
    return "\n".join(lines) + "\n"


def _pictures(quick: bool) -> dict[str, bytes]:
    """Draws the pictures of the guides; in a quick build, one stands for all."""
    import pictures

    if quick:
        one = (DOCS / "images" / "overview.png").read_bytes()
        return {f"images/{name}.png": one for name in pictures.PICTURES}
    return {f"images/{name}.png": pictures.draw(name) for name in pictures.PICTURES}
