"""The JavaScript of the guide "Deploy" answers as the library does."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from processes import finish, start

from keras_selcal import Policy, TemperatureScaling

GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"


@pytest.mark.backend_free
def test_javascript(tmp_path, monkeypatch):
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 2000)
    x = 3 * np.eye(4)[y] + 2 * rng.normal(size=(2000, 4))
    policy = Policy.fit(x, y, coverage=0.6, calibrator=TemperatureScaling())
    policy.save("policy.json")
    (code,) = re.findall(r"^```js\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
    x = x.astype("float32")
    Path("logits.json").write_text(json.dumps(x.tolist()))
    code += (
        'const rows = JSON.parse(require("fs").readFileSync("logits.json", "utf8"));\n'
        "rows.push([NaN, 1, 2, 3]);\n"
        "console.log(JSON.stringify(rows.map(answer)));\n"
    )
    Path("answer.js").write_text(code)
    found = json.loads(finish(start("answer.js", python=node)))
    expected = policy.predict(np.r_[x, [[np.nan, 1, 2, 3]]]).labels
    assert found == expected.tolist()
    assert 0 < np.mean(expected == -1) < 1
