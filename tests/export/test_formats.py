"""Exported models answer as `predict` does, in a process without Keras.

The converters and runtimes are installed in the environment `export` of tox.
"""

import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from export_cases import CASES, CLASSES, CONVERTERS, answers, inputs
from processes import finish, start

from keras_selcal._backend.export import ENDINGS, WRITERS

BACKEND = keras.backend.backend()
READER = Path(__file__).parents[1] / "export_reader.py"
GUIDE = Path(__file__).parents[2] / "docs" / "export.md"

pytestmark = CONVERTERS


def check_table(format, found):
    """Compares what was found, by class, with the table of the guide, or writes it
    there if KERAS_SELCAL_WRITE_TABLE is set.
    """
    lines = GUIDE.read_text("utf-8").splitlines()
    (head,) = [line for line in lines if line.startswith("| format | class |")]
    column = [cell.strip() for cell in head.split("|")].index(BACKEND)
    for name, cell in found.items():
        start = f"| `{format}` | `{name}` |"
        (row,) = [i for i, line in enumerate(lines) if line.startswith(start)]
        cells = lines[row].split("|")
        if "KERAS_SELCAL_WRITE_TABLE" in os.environ:
            cells[column] = f" {cell} "
            lines[row] = "|".join(cells)
        else:
            assert cells[column].strip() == cell, lines[row]
    if "KERAS_SELCAL_WRITE_TABLE" in os.environ:
        GUIDE.write_text("\n".join(lines) + "\n", "utf-8")


@pytest.mark.filterwarnings("ignore")  # of the converters
@pytest.mark.parametrize("format", WRITERS[BACKEND])
def test_exported_models_answer_as_predict_does(format, tmp_path):
    wrong = {}
    for name, make in CASES.items():
        made = make()
        try:
            # Before anything calls the model.
            made.export(tmp_path / f"{name}{ENDINGS[format]}", format=format)
        except Exception as error:
            wrong[name] = repr(error)
            continue
        given = inputs(made, format)
        expected = answers(made, **given)
        named = {f"input_{key}": array for key, array in given.items()}
        np.savez(tmp_path / f"{name}.npz", **named, **expected)
    printed = finish(start(READER, format, tmp_path))
    wrong |= json.loads(printed.splitlines()[-1])
    assert wrong.keys() == CASES.keys()
    assert {name: each for name, each in wrong.items() if each} == {}
    found = dict.fromkeys(CLASSES, "yes")
    check_table(format, found)


@pytest.mark.parametrize("format", sorted(ENDINGS.keys() - WRITERS[BACKEND].keys()))
def test_what_a_backend_cannot_export_is_refused(format, tmp_path):
    for cases in CLASSES.values():
        with pytest.raises(ValueError, match=f"on {BACKEND}"):
            CASES[cases[0]]().export(tmp_path / "model", format=format)
    assert not list(tmp_path.iterdir())
    check_table(format, dict.fromkeys(CLASSES, "–"))
