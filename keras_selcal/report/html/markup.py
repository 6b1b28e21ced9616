"""Pieces of HTML that the sections of a page share.

Arguments are HTML: callers escape text that comes from users.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

# Tables with more columns may have to be scrolled sideways on a phone.
_FEW_COLUMNS = 4

# Decimal numbers with more digits are shown in groups, as in the script.
_FEW_DIGITS = 4


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = ""
) -> str:
    """Returns a table; the first cell of a row heads it."""
    # A table that scrolls must be reachable by keyboard.
    wide = len(head) > _FEW_COLUMNS
    focus = ' tabindex="0" role="group" aria-label="A wide table"' if wide else ""
    columns = "".join(
        f'<th role="columnheader" scope="col">{cell}</th>' for cell in head
    )
    # The roles keep its semantics where a small screen displays it as a list.
    lines = "".join(
        f'<tr role="row"><th role="rowheader" scope="row">{first}</th>'
        + "".join(f'<td role="cell">{cell}</td>' for cell in cells)
        + "</tr>\n"
        for first, *cells in rows
    )
    return (
        f'<div class="scroll"{focus}><table role="table" class="{kind}">'
        f'<caption>{caption}</caption><thead role="rowgroup"><tr role="row">{columns}'
        f'</tr></thead><tbody role="rowgroup">\n{lines}</tbody></table></div>'
    )


def details(summary: str, content: str) -> str:
    """Returns content that the reader can open."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def key(*entries: tuple[str, str]) -> str:
    """Returns the legend of a picture from the classes and labels of its marks."""
    items = "".join(f"<li>{swatch(kind)}{label}</li>" for kind, label in entries)
    return f'<ul class="key">{items}</ul>'


def swatch(kind: str) -> str:
    """Returns a small picture of a line or a bar."""
    shape = f'<path class="{kind}" d="M0 7H28"/>'
    if kind.startswith(("bar", "number")):
        shape = f'<rect class="{kind}" x="6" y="1" width="16" height="12"/>'
    elif kind == "whisker":
        shape = f'<path class="{kind}" d="M14 0V14"/>'
    return f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">{shape}</svg>'


def line_style(index: int) -> str:
    """Returns the classes of a model's colour and dashes: no two of 35 share both."""
    return f"s{index % 7} d{index % 5}"


def grouped(number: str) -> str:
    """Returns a long decimal number in groups of three digits, to read and to copy."""
    whole, _, digits = number.partition(".")
    if len(digits) <= _FEW_DIGITS:
        return number
    groups = (digits[i : i + 3] for i in range(0, len(digits), 3))
    return f"{whole}." + "".join(f'<span class="digits">{x}</span>' for x in groups)


def with_interval(value: str, interval: str | None) -> str:
    """Returns a cell: a value, and below it its interval."""
    return f"<b>{value}</b>" + (f"<small>{interval}</small>" if interval else "")


def script_json(data: Any) -> str:
    """Returns JSON without markup, for a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def source_hash(text: str) -> str:
    """Returns the hash of a style or a script for a content security policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
