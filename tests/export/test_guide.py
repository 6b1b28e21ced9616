"""The guide "Save and export" serves what it exports."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from export_cases import CONVERTERS

from keras_selcal._backend.export import WRITERS

BACKEND = keras.backend.backend()
GUIDE = Path(__file__).parents[2] / "docs" / "export.md"

pytestmark = CONVERTERS


@pytest.mark.filterwarnings("ignore")  # of the converters
def test_the_guide_serves_what_it_exports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```(py|python)\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S
    )
    named = {}
    for kind, code in blocks:
        if kind == "python":
            exec(code, named)
    export, *serve = [code for kind, code in blocks if kind == "py"]
    for line in export.splitlines():
        format = re.search('format="(.*?)"', line)
        if format is None or format[1] in WRITERS[BACKEND]:
            exec(line, named)
    served = 0
    expected = named["classifier"].predict(named["x"], verbose=0).labels
    for code in serve:
        (name,) = re.findall(r'"(classifier[.a-z0-9]*)"', code)
        if Path(name).exists():
            exec(code, named)
            found = np.asarray(named["answers"]["labels"])
            np.testing.assert_array_equal(found, expected)
            served += 1
    assert served == len(WRITERS[BACKEND])
    assert 0 < np.mean(expected == -1) < 1
    assert Path("calibrated.onnx").exists()
