"""Builds the parts of the site that are not written by hand.

These are the start page (the README), the experiment, the study, the claims, the
benchmarks, the changelog, the tutorials, the API reference, every picture of the page
on concepts, and what the code of the guides and tutorials prints and draws
(`docs/execute.py`). With `KERAS_SELCAL_QUICK` set, no code runs and nothing is drawn.
"""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import api
from execute import with_outputs
from formulas import typeset
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
_GUIDES = {
    "Calibrate and abstain": "calibrate abstain sets scores unknown independence "
    "ensembles",
    "Measure": "metrics report monitor",
    "Train": "losses recipes",
    "In production": "export deploy drift devices",
    "Kinds of data": "arrays binary segmentation",
}
# The start page shows the README, with links to the parts of the site.
_BUTTONS = """[Get started](#install){ .md-button .md-button--primary }
[Tutorials](tutorials/vision.md){ .md-button }
[Guides](calibrate.md){ .md-button }
[API](api/index.md){ .md-button }"""
_log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """Orders the pages."""
    # MkDocs has the folder of the hooks on the path only while it imports them.
    sys.path[:0] = [str(ROOT), str(DOCS)]
    guides = [
        {title: [f"{name}.md" for name in names.split()]}
        for title, names in _GUIDES.items()
    ]
    tutorials = [f"tutorials/{path.stem}.md" for path in _tutorials()]
    benchmarks = {"Benchmarks": "benchmarks.md"}
    config.nav = [
        {"Start": "index.md"},
        {"Concepts": "concepts.md"},
        {"Tutorials": tutorials},
        {"Guides": guides},
        {"API": ["api/index.md", *({name: f"api/{name}.md"} for name in api.PACKAGES)]},
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
    pages |= {f"api/{name}.md": text for name, text in api.pages().items()}
    pages |= _pictures(quick)
    for uri, content in pages.items():
        known = files.get_file_from_path(uri)
        if known is not None:
            files.remove(known)
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links at the pages of the site, and typesets formulas."""
    if page.file.src_uri in ("index.md", "concepts.md"):
        # The only pages of their tabs.
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri in ("comparison.md", "study.md"):
        # Their tables take the width.
        page.meta["hide"] = ["toc"]
    if page.file.src_uri == "index.md":
        head, picture, rest = markdown.partition("![")
        hero = f'<div class="hero" markdown>\n\n{head}{_BUTTONS}\n\n</div>\n\n'
        markdown = hero + picture + rest
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


def _pictures(quick: bool) -> dict[str, bytes]:
    """Draws the pictures of the guides; in a quick build, one stands for all."""
    import pictures

    if quick:
        one = (DOCS / "images" / "overview.png").read_bytes()
        return {f"images/{name}.png": one for name in pictures.PICTURES}
    return {f"images/{name}.png": pictures.draw(name) for name in pictures.PICTURES}
