"""Builds the parts of the site that are not written by hand.

These are the start page (the README), the experiment, the study, the claims, the
benchmarks, the changelog, the tutorials, the API reference, every picture of the page
on concepts, and what the code of the guides and tutorials prints and draws
(`docs/execute.py`).
"""

import inspect
import logging
import os
import re
import sys
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
    "export.md",
    "deploy.md",
    "independence.md",
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
        {"API": [{name: f"api/{name}.md"} for name in _API]},
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
        run[f"tutorials/{path.stem}.md"] = _tutorial_page(path)
        notebook = jupytext.writes(jupytext.read(path), fmt="ipynb")
        pages[f"tutorials/{path.stem}.ipynb"] = notebook
    _find_data()
    for name, text in run.items():
        _log.info("Running the code of %s", name)
        try:
            pages |= with_outputs(name, text)
        except Exception as error:
            if "URL fetch failure" not in str(error):
                raise
            _log.info("%s is shown without outputs: %s", name, error)
            pages[name] = text
    for name in _API:
        pages[f"api/{name}.md"] = _api_page(name)
    pages |= _pictures()
    for uri, content in pages.items():
        known = files.get_file_from_path(uri)
        if known is not None:
            files.remove(known)
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links to files of the repository at the pages of the site."""
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

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", replace, markdown)


def _find_data() -> None:
    """Names the data of a tutorial, if they need not be downloaded."""
    data = Path(os.environ.get("KERAS_SELCAL_DATA", "")) / "text" / "clinc150.json"
    if data.is_file():
        os.environ.setdefault("CLINC150", str(data))


def _tutorials() -> list[Path]:
    return sorted((DOCS / "tutorials").glob("[!_]*.py"))


def _tutorial_page(path: Path) -> str:
    """Returns a script of cells (`# %%`) as Markdown."""
    parts: list[str] = []
    for cell in re.split(r"^# %%", path.read_text("utf-8"), flags=re.M)[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            parts.append(re.sub(r"^# ?", "", body, flags=re.M).strip())
            if len(parts) == 1:
                parts.append(f"[Download the notebook]({path.stem}.ipynb)")
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _api_page(name: str) -> str:
    """Returns a page with every public name of a package."""
    from importlib import import_module

    module = import_module(f"keras_selcal.{name}")
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            key
            for key, thing in vars(module).items()
            if not key.startswith("_")
            and getattr(thing, "__module__", None) == module.__name__
        ]
    # Markdown wants an empty line before a list.
    head = re.sub(r":\n- ", ":\n\n- ", inspect.getdoc(module) or "")
    lines = [f"# keras_selcal.{name}", "", head, ""]
    for key in sorted(names, key=str.lower):
        thing = getattr(module, key)
        # The docstring of the module tells of its constants and instances.
        if inspect.isclass(thing) or inspect.isroutine(thing):
            lines += [f"::: {thing.__module__}.{key}", ""]
    return "\n".join(lines)


def _pictures() -> dict[str, bytes]:
    import pictures

    return {f"images/{name}.png": pictures.draw(name) for name in pictures.PICTURES}
