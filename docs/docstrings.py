"""Prepares docstrings for the API reference: formulas, examples and references.

The docstrings write formulas in Unicode, with `_` and `^` for indices and powers, so
that they can be read in an editor. Here they become HTML.
"""

import html
import re
import textwrap
from typing import Any

from griffe import Extension, Object

# A power is braced, bracketed or one word.
_POWER = re.compile(r"\^(?:\{([^{}]*)\}|\(((?:[^()]|\([^()]*\))*)\)|([\w²³*†ᵀ]+))")
# An index is braced or short, or its base is one letter: `num_bins` has none.
_INDEX = re.compile(
    r"(?<=[\w\u0300-\u036f)\]|])_(?:\{([^{}]*)\}|(\w{1,2})(?!\w))"
    r"|(?<=(?<!\w)\w)_(\w+)"
)
# In prose, only a letter with a short index is one; names are in backticks.
_PROSE_INDEX = re.compile(r"(?<![\w/.])(\w[\u0300-\u036f]?)_(\w{1,2})(?![\w:])")
_CODE = re.compile(
    r"(```.*?```|`[^`]*`|<div.*?</div>|^>>> .*$|\]\([^)]*\))", re.DOTALL | re.M
)
_FENCE = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(r"^(>>> .*?)(?=\n\s*\n(?!>>>)|\Z)", re.DOTALL | re.MULTILINE)


def formula_html(text: str) -> str:
    """Returns a formula as HTML, with subscripts and superscripts.

    >>> formula_html("(1 − p_y)^γ")
    '(1 − p<sub>y</sub>)<sup>γ</sup>'
    """
    text = html.escape(textwrap.dedent(text).strip("\n"), quote=False)

    text = _POWER.sub(lambda match: f"<sup>{_inside(match)}</sup>", text)
    # Twice, for an index of an index.
    for _ in range(2):
        text = _INDEX.sub(lambda match: f"<sub>{_inside(match)}</sub>", text)
    return text


def _inside(match: re.Match[str]) -> str:
    return next(part for part in match.groups() if part is not None)


def prepare(text: str) -> str:
    """Returns a docstring as Markdown for the site."""
    # A fence without a language holds a formula.
    text = _FENCE.sub(
        lambda match: f'<div class="formula">{formula_html(match[1])}</div>\n', text
    )
    text = re.sub(r"^(Formula.*):\n", r"**\1**\n", text, flags=re.M)
    text = re.sub(r"^Example:\n", "**Example**\n\n", text, flags=re.M)
    text = re.sub(r"^References:\n", "**References**\n\n", text, flags=re.M)
    text = _EXAMPLE.sub(lambda match: f"```pycon\n{match[1]}\n```", text)
    pieces = _CODE.split(text)
    pieces[::2] = [_PROSE_INDEX.sub(r"\1<sub>\2</sub>", piece) for piece in pieces[::2]]
    return "".join(pieces)


class PrepareDocstrings(Extension):
    """Prepares every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = prepare(obj.docstring.value)
