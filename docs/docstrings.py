"""Prepares docstrings for the API reference: formulas, examples and references.

mkdocstrings reads the arguments; the other sections become Markdown.
"""

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from griffe import Extension, Object

sys.path.insert(0, str(Path(__file__).parent))
from formulas import typeset

_EXAMPLE = re.compile(r"^(>>> .*?)(?=\n\s*\n(?!>>>)|\Z)", re.DOTALL | re.MULTILINE)


def prepare(text: str) -> str:
    """Returns a docstring as Markdown for the site."""
    text = re.sub(r"^(Formula.*):\n", r"**\1**\n", text, flags=re.M)
    # mkdocstrings would read words before a colon as a type.
    for head in ("Returns", "Example", "References"):
        text = re.sub(
            rf"^{head}:\n((?: +.*\n?|\n(?= ))*)",
            lambda m, head=head: f"**{head}**\n\n{textwrap.dedent(m[1])}",
            text,
            flags=re.M,
        )
    text = _EXAMPLE.sub(lambda match: f"```pycon\n{match[1]}\n```", text)
    return typeset(text)


class PrepareDocstrings(Extension):
    """Prepares every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = prepare(obj.docstring.value)
