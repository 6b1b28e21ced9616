"""Columns of files beside the predictions: groups and slices."""

import re

import numpy as np
import pytest
from command_line import LABELS, PROBS, refused, run

from keras_selcal import Policy, select_threshold
from keras_selcal.cli import main

pytestmark = pytest.mark.backend_free


def write_columns(folder, suffix, **beside):
    """Predictions with other columns beside them."""
    path = folder / f"{'with' if beside else 'without'}.{suffix}"
    if suffix == "npz":
        np.savez(
            path, probs=np.tile(PROBS, (20, 1)), labels=np.tile(LABELS, 20), **beside
        )
        return path
    rows = np.tile(np.column_stack([LABELS, PROBS]), (20, 1))
    columns = {"label": rows[:, 0].astype(int), "p0": rows[:, 1]}
    # Columns may stand anywhere.
    columns |= beside | {"p1": rows[:, 2], "p2": rows[:, 3]}
    if suffix == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = {name: column.tolist() for name, column in columns.items()}
        parquet.write_table(pyarrow.table(table), path)
        return path
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(lines))
    return path


BESIDE = {
    "patient": np.array([f"patient {i}" for i in range(40)]).repeat(2),
    "site": np.array(["north", "south"]).repeat(40),
    "ward": np.arange(80) % 3,
}


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_groups_and_slices_are_columns(tmp_path, capsys, suffix):
    path = str(write_columns(tmp_path, suffix, **BESIDE))
    page = str(tmp_path / "page.html")
    options = ["--groups", "patient", "--slices", "site", "ward"]
    run(path, *options, "-o", page)
    printed = capsys.readouterr().out
    assert "80 samples in 40 groups" in printed
    assert "5 slices" in printed
    assert "site: north" in printed
    assert "ward: 2" in printed
    plain = str(write_columns(tmp_path, "csv"))
    only = str(write_columns(tmp_path, suffix, patient=BESIDE["patient"]))
    main(["compare", f"a={only}", f"b={plain}", "--groups", "patient"])
    assert "resamples of the 40 groups" in capsys.readouterr().out


def test_thresholds_of_groups(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.9, 1, 3000)
    right = rng.random(3000) < 0.99
    path = str(tmp_path / "groups.npz")
    patient = np.arange(3000) // 3
    np.savez(path, probs=p, labels=right * 1, patient=patient)
    main(["threshold", path, "--risk", "0.03", "--groups", "patient", "--test", path])
    printed = capsys.readouterr().out
    assert "over the draw of these groups" in printed
    scores = np.maximum(p, 1 - p)
    want = select_threshold(scores, right, risk=0.03, delta=0.05, groups=patient)
    at = float(re.search(r"is at least ([0-9.]+)\.", printed)[1])
    np.testing.assert_array_equal(scores >= at, scores >= want)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--groups", "doctor"], "has no column `doctor`. Found: "),
        (["--slices", "site", "age"], "has no column `age`"),
        (["--groups", "probs"], "`probs` must have shape (80,)"),
    ],
)
def test_columns_that_are_missing_are_named(tmp_path, capsys, options, told):
    path = write_columns(tmp_path, "npz", **BESIDE)
    refused(capsys, [str(path), *options], told)


def test_columns_of_two_files_must_agree(tmp_path, capsys):
    patient = BESIDE["patient"]
    one = write_columns(tmp_path, "npz", patient=patient)
    two = write_columns(tmp_path, "csv", patient=patient[::-1])
    told = "the column `patient` is not the same as in"
    refused(capsys, [f"a={one}", f"b={two}", "--groups", "patient"], told)
    refused(capsys, [str(two)], "named by --groups or --slices")


def test_policies_of_groups(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    p = rng.uniform(0.9, 1, 3000)
    patient = np.arange(3000) // 3
    for name in ("fit.npz", "new.npz"):
        right = rng.random(3000) < 0.99
        np.savez(name, probs=p, labels=right * 1, patient=patient)
    groups = ["--groups", "patient"]
    main(["fit", "fit.npz", "--risk", "0.05", "--method", "none", *groups])
    assert "over the draw of these groups" in capsys.readouterr().out
    policy = Policy.load("policy.json")
    assert policy.record.groups == 1000
    main(["threshold", "new.npz", "--risk", "0.05", "--policy", "policy.json", *groups])
    assert "over the draw of these groups" in capsys.readouterr().out
    main(["check", "policy.json", "new.npz", *groups])
    assert "No alarm" in capsys.readouterr().out
