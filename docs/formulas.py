"""Turns formulas that are written in Unicode into MathML.

Docstrings and guides write `(1 − p_y)^γ` or `Σ_{i≠j} w_ij²`, which can be read in an
editor and on GitHub. On the site, blocks of formulas are MathML, which browsers typeset
without a script, and indices in prose are HTML.
"""

import html
import re
import unicodedata
from collections import Counter

_SCRIPTS = {"²": "^2", "³": "^3", "⁻¹": "^{−1}", "¹": "^1", "₀": "_0", "..": "…"}
_LARGE = {"Σ": "∑", "Π": "∏"}
_WITH_LIMITS = {"∑", "∏", "max", "min", "sup"}
_ACCENTS = {"\u0302": "^", "\u0303": "~", "\u0304": "¯"}
_BRACKETS = {"(": ")", "[": "]", "{": "}", "⌈": "⌉"}
_BARS = ("|", "‖")
_ENDS = ")]}⌉*'"
_TOKEN = re.compile(
    r"""(?P<code>\w+="[^"]*"|`[^`]*`)
    |(?P<space>\s+)
    |(?P<number>\d+(?:\.\d+)?|½)
    |(?P<word>[^\W\d_]+-[^\W\d_]{2,}|[^\W\d_]{2,}(?:_[^\W_]{3,})+|[^\W\d_]+[\u0300-\u036f]?)
    |(?P<operator>.)""",
    re.VERBOSE,
)
# Two spaces or more divide a line into pieces.
_PIECE = re.compile(r"\S+(?: \S+)*")
# In prose, only a letter with a short index is one; names are in backticks.
_PROSE_INDEX = re.compile(
    r"((?<![\w/.])\w[\u0300-\u036f]?|‖)_(\w{1,2}|\(\w\))(?![\w:])"
)
_PROSE_POWER = re.compile(r"(?<=[\w)])\^(\w+(?:\.\d+)?)")
_PERCENT = re.compile(r"(?<=\d) %")
_CODE = re.compile(
    r"(```.*?```|`[^`]*`|<div.*?</div>|^>>> .*$|\]\([^)]*\))", re.DOTALL | re.M
)
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _formula(block: re.Match[str]) -> str:
    """Returns a block without a language, which holds a formula, as MathML."""
    return block[0] if block[1] else f'<div class="formula">{to_mathml(block[2])}</div>'


def typeset(text: str) -> str:
    """Returns Markdown with its formulas as MathML and HTML."""
    text = _FENCE.sub(_formula, text)
    pieces = _CODE.split(text)
    for i in range(0, len(pieces), 2):
        pieces[i] = _PROSE_INDEX.sub(r"\1<sub>\2</sub>", pieces[i])
        pieces[i] = _PROSE_POWER.sub(r"<sup>\1</sup>", pieces[i])
        pieces[i] = _PERCENT.sub("&nbsp;%", pieces[i])
    return "".join(pieces)


def to_mathml(text: str) -> str:
    """Returns a formula of one or more lines as MathML.

    Pieces of lines that start in the same column are aligned.

    >>> "<msubsup><mi>p</mi><mi>y</mi><mn>2</mn></msubsup>" in to_mathml("p_y²")
    True
    """
    lines = [
        [(match.start(), match[0]) for match in _PIECE.finditer(line)]
        for line in text.splitlines()
    ]
    starts = Counter(start for line in lines for start, _ in line)
    columns = sorted({0} | {start for start, count in starts.items() if count > 1})
    rows = []
    for line in lines:
        cells = {column: "" for column in columns}
        for start, piece in line:
            column = max(c for c in columns if c <= start)
            space = "2em" if cells[column] else f"{(start - column) / 2}em"
            cells[column] += f'<mspace width="{space}"/>{_Reader(piece).row()}'
        rows.append("".join(f"<mtd>{cell}</mtd>" for cell in cells.values()))
    table = "".join(f"<mtr>{row}</mtr>" for row in rows)
    return f'<math><mtable displaystyle="true">{table}</mtable></math>'


class _Reader:
    """Reads a piece of a formula from left to right."""

    def __init__(self, text: str) -> None:
        for old, new in _SCRIPTS.items():
            text = text.replace(old, new)
        self._tokens = [(m.lastgroup, m[0]) for m in _TOKEN.finditer(text)]
        self._next = 0

    def row(self, closing: str = "", *, fraction: bool = True) -> str:
        """Returns everything up to a closing bracket, or to the end.

        Args:
            closing: the bracket.
            fraction: whether a row that is nothing but a/b becomes a fraction.
        """
        parts: list[str] = []
        while self._token() not in ("", closing):
            parts.append(self._with_scripts())
        parts = [part for part in parts if part]
        if fraction and len(parts) == 3 and parts[1] == "<mo>/</mo>":
            return f"<mfrac>{_bare(parts[0])}{_bare(parts[2])}</mfrac>"
        return "".join(parts)

    def _token(self, ahead: int = 0) -> str:
        index = self._next + ahead
        return self._tokens[index][1] if 0 <= index < len(self._tokens) else ""

    def _kind(self, ahead: int = 0) -> str | None:
        index = self._next + ahead
        return self._tokens[index][0] if 0 <= index < len(self._tokens) else None

    def _with_scripts(self) -> str:
        base = self._atom()
        scripts = {}
        while self._token() in ("_", "^"):
            sign = self._token()
            self._next += 1
            scripts[sign] = self._script()
        if not scripts:
            return base
        large = re.sub(r"<[^>]*>", "", base) in _WITH_LIMITS
        names = {"_": "under", "^": "over"} if large else {"_": "sub", "^": "sup"}
        tag = "".join(names[sign] for sign in names if sign in scripts)
        parts = "".join(scripts[sign] for sign in names if sign in scripts)
        return f"<m{tag}>{base}{parts}</m{tag}>"

    def _script(self) -> str:
        if self._token() == "{":
            self._next += 1
            inside = self.row("}")
            self._next += 1
            return f"<mrow>{inside}</mrow>"
        if re.fullmatch(r"[a-z]{2}", self._token()):
            # Two indices, as in w_ij.
            self._next += 1
            return "<mrow>{}</mrow>".format("".join(map(_name, self._token(-1))))
        return self._atom()

    def _atom(self) -> str:
        kind, token = self._kind(), self._token()
        self._next += 1
        if kind == "space":
            # Operators have space of their own.
            after = self._kind() != "operator" or self._token() in _BRACKETS
            before = self._kind(-2) != "operator" or self._token(-2) in _ENDS
            visible = before and after
            return '<mspace width="0.25em"/>' if visible else ""
        if kind == "code":
            return f'<mtext class="code">{html.escape(token.strip("`"))}</mtext>'
        if kind == "number":
            return f"<mn>{token}</mn>"
        if token in ("√", "sqrt"):
            inside = self._atom() if self._token() == "(" else self.row(")")
            return f"<msqrt>{_bare(inside)}</msqrt>"
        if token in _LARGE:
            return f"<mo>{_LARGE[token]}</mo>"
        if kind == "word":
            return self._primed(_name(token))
        if token in _BRACKETS:
            return self._group(token)
        if token in _BARS:
            return self._bar(token)
        return f"<mo>{html.escape(token)}</mo>" if token != "-" else "<mtext>-</mtext>"

    def _primed(self, name: str) -> str:
        if self._token() not in ("'", "*"):
            return name
        self._next += 1
        if self._token(-1) == "*":
            return f"<msup>{name}<mo>*</mo></msup>"
        return f'<mrow>{name}<mo lspace="0" rspace="0">\'</mo></mrow>'

    def _group(self, opening: str) -> str:
        # The arguments of a function keep their brackets, as in R(i/n).
        called = self._kind(-2) in ("word", "number") or self._token(-2) == "}"
        inside = self.row(_BRACKETS[opening], fraction=not called)
        self._next += 1
        if inside.startswith("<mfrac>") and self._token() != "^":
            return inside
        tall = "<mfrac>" in inside or "under>" in inside
        stretchy = "" if tall else ' stretchy="false"'
        ends = (f"<mo{stretchy}>{x}</mo>" for x in (opening, _BRACKETS[opening]))
        return f"<mrow>{next(ends)}{inside}{next(ends)}</mrow>"

    def _bar(self, token: str) -> str:
        before, after = self._kind(-2), self._kind()
        form = "postfix" if before not in (None, "space", "operator") else "prefix"
        if before == after == "space":
            return f'<mspace width="0.25em"/><mo>{token}</mo><mspace width="0.25em"/>'
        if self._token(-2) in _ENDS:
            form = "postfix"
        return f'<mo form="{form}" stretchy="false">{token}</mo>'


def _name(token: str) -> str:
    base = unicodedata.normalize("NFD", token)
    if len(base) == 2 and base[1] in _ACCENTS:
        accent = f'<mo stretchy="false">{_ACCENTS[base[1]]}</mo>'
        return f'<mover accent="true"><mi>{base[0]}</mi>{accent}</mover>'
    return f"<mi>{token}</mi>"


def _bare(group: str) -> str:
    """Returns a group without its brackets."""
    match = re.fullmatch(r"<mrow><mo[^>]*>\(</mo>(.*)<mo[^>]*>\)</mo></mrow>", group)
    return f"<mrow>{match[1]}</mrow>" if match else group
