"""Formulas in Unicode become MathML on the site."""

import re
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import formulas
import pytest

pytestmark = pytest.mark.backend_free
PACKAGE = Path(__file__).parents[2] / "keras_selcal"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("w_ij²", "<msubsup><mi>w</mi><mrow><mi>i</mi><mi>j</mi></mrow><mn>2</mn>"),
        ("H_{n−r}", "<msub><mi>H</mi><mrow><mi>n</mi><mo>−</mo><mi>r</mi></mrow>"),
        ("Σ_b", "<munder><mo>∑</mo><mi>b</mi></munder>"),
        ("(1/n) x", "<mfrac><mn>1</mn><mi>n</mi></mfrac>"),
        ("R(i/n)", "<mi>i</mi><mo>/</mo><mi>n</mi>"),
        ("√(a b)", "<msqrt><mrow><mi>a</mi>"),
        ("p̄", '<mover accent="true"><mi>p</mi><mo stretchy="false">¯</mo></mover>'),
        ("Ĝ_ν", "</mover><mi>ν</mi></msub>"),
        ("a < b", "<mi>a</mi><mo>&lt;</mo><mi>b</mi>"),
        ('norm="l1"', '<mtext class="code">norm=&quot;l1&quot;</mtext>'),
    ],
)
def test_notation(text, expected):
    assert expected in formulas.to_mathml(text)


def test_pieces_that_start_in_the_same_column_are_aligned():
    table = formulas.to_mathml("a    b\nab   c\nabc d")
    rows = ElementTree.fromstring(table).findall(".//mtr")
    assert [len(row) for row in rows] == [2, 2, 2]
    assert ["".join(row[1].itertext()) for row in rows] == ["b", "c", ""]


def test_code_is_left_alone():
    code = "`p_y`\n\n```python\nx_1 = 2\n```\n"
    assert formulas.typeset(f"p_y and {code}") == f"p<sub>y</sub> and {code}"
    assert formulas.typeset("π_(1), ‖z‖_p") == "π<sub>(1)</sub>, ‖z‖<sub>p</sub>"
    assert formulas.typeset("(1 − s)^1.5.") == "(1 − s)<sup>1.5</sup>."
    assert formulas.typeset("```\np_y\n```").startswith('<div class="formula"><math>')


def test_every_formula_of_the_package_is_well_formed():
    found = 0
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        for block in re.findall(r"^ *```\n(.*?)^ *```$", text, re.DOTALL | re.M):
            ElementTree.fromstring(formulas.to_mathml(textwrap.dedent(block)))
            found += 1
    assert found > 50
