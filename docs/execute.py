"""Runs the code of a page, and returns the page with what the code printed and drew.

The site is built with `with_outputs`; the tests run the same code.
"""

import contextlib
import io
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Blocks of Python, and of shell if they are commands on files of predictions.
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = "keras-selcal "


class Session:
    """Runs blocks of code one after the other, in the present folder."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "page"}

    def run(self, language: str, code: str, where: str) -> str | None:
        """Returns what a block prints, or None if it is not one to run."""
        printed = io.StringIO()
        if language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(code, where, "exec"), self._names)
            return printed.getvalue()
        commands = code.replace("\\\n", " ").strip().splitlines()
        if not all(command.startswith(_COMMAND) for command in commands):
            return None
        from keras_selcal.cli import main

        for command in commands:
            printed.write(f"$ {command}\n" if len(commands) > 1 else "")
            with contextlib.redirect_stdout(printed):
                main(shlex.split(command, comments=True)[1:])
            printed.write("\n")
        return printed.getvalue()


def with_outputs(name: str, markdown: str) -> dict[str, str | bytes]:
    """Returns a page with outputs, and its pictures and reports, by their paths.

    Args:
        name: path of the page in the site, such as `"abstain.md"`.
        markdown: the page.
    """
    files: dict[str, str | bytes] = {}
    stem = name.removesuffix(".md").replace("/", "-")
    up = "../" * name.count("/")
    session = Session()

    def replace(block: re.Match[str]) -> str:
        text = session.run(block[1], block[2], name)
        parts = [block[0]]
        if text and text.strip():
            lines = "\n".join(map(_folded, text.rstrip().splitlines()))
            parts.append(f"```{{ .text .output }}\n{lines}\n```")
        for picture in _pictures():
            path = f"images/{stem}-{len(files)}.png"
            files[path] = picture
            parts.append(f"![What the code draws]({up}{path})")
        for page in _pages(seen):
            path = f"reports/{stem}-{page}"
            files[path] = Path(page).read_text("utf-8")
            parts.append(f"[Open {page}, which the code writes]({up}{path})")
        return "\n\n".join(parts)

    seen: set[str] = set()
    with _fresh_folder():
        files[name] = _BLOCK.sub(replace, markdown)
    return files


def _folded(line: str) -> str:
    """Breaks a long line as a terminal does, unless it is a row of a table."""
    table = "  " in line.strip() and not line.startswith("{")
    return line if table else textwrap.fill(line, 88)


def _pictures() -> Iterator[bytes]:
    """Yields the figures that are open, as a notebook shows them, and closes them."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, dpi=80, bbox_inches="tight")
        yield content.getvalue()
    pyplot.close("all")


def _pages(seen: set[str]) -> list[str]:
    new = sorted({path.name for path in Path().glob("*.html")} - seen)
    seen.update(new)
    return new


@contextlib.contextmanager
def _fresh_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
