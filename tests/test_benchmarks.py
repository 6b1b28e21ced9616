"""The benchmarks run, and compare a run with a saved one."""

import json

import keras
import pytest

benchmarks = pytest.importorskip("benchmarks.__main__")

pytestmark = pytest.mark.backend_free


def few(quick, repetitions):
    """A group of two rows."""
    yield benchmarks.rows_of("2 × 2", "a", {"a": 2.0, "b": 6.0})


@pytest.mark.parametrize(("before", "slower"), [(1.5, True), (2.5, False)])
def test_a_run_is_compared_with_a_saved_one(
    before, slower, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(benchmarks, "GROUPS", {"few": few})
    path = saved(tmp_path, rows={"few: b, 2 × 2": {"ratio": before}})
    status = benchmarks.main(["--json", str(path), "--compare", str(path)])
    assert status == slower
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("b, "))
    assert line.split()[4:8] == ["6.000", "3.00", f"{before:.2f}", "a" + "," * slower]
    assert ("slower" in line) == slower
    run = json.loads(path.read_text("utf-8"))
    assert run["backend"] == keras.backend.backend()
    assert run["rows"]["few: b, 2 × 2"]["ratio"] == 3.0


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"backend": "none"}, "was measured on none; this run is on"),
        ({"quick": True}, "was measured with --quick"),
        ({"rows": None}, "no run of python -m benchmarks"),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_compared_is_refused(run, words, tmp_path, capsys):
    path = tmp_path / "run.json"
    if run is not None:
        saved(tmp_path, **run)
    with pytest.raises(SystemExit) as end:
        benchmarks.main(["--compare", str(path)])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def saved(folder, **changed):
    """Writes a run, without what is changed to None."""
    run = {"backend": keras.backend.backend(), "quick": False, "rows": {}, **changed}
    run = {name: value for name, value in run.items() if value is not None}
    path = folder / "run.json"
    path.write_text(json.dumps(run), "utf-8")
    return path


def test_rows_of_the_same_name_in_two_groups_are_compared_apart(
    tmp_path, capsys, monkeypatch
):
    def faster(quick, repetitions):
        """The same rows, but faster."""
        yield benchmarks.rows_of("2 × 2", "a", {"a": 2.0, "b": 2.0})

    monkeypatch.setattr(benchmarks, "GROUPS", {"few": few, "faster": faster})
    path = saved(
        tmp_path,
        rows={"few: b, 2 × 2": {"ratio": 1.5}, "faster: b, 2 × 2": {"ratio": 1.0}},
    )
    assert benchmarks.main(["--compare", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    marked = ["slower" in line for line in lines if line.startswith("b, ")]
    assert marked == [True, False]
    assert "2 of 4 rows" in lines[-1]


def test_a_comparison_of_no_row_does_not_pass(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmarks, "GROUPS", {"few": few})
    path = saved(tmp_path, rows={"other": {"ratio": 1.0}})
    assert benchmarks.main(["--compare", str(path)]) == 2
    assert "0 of 2 rows" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_groups(tmp_path, capsys, monkeypatch):
    def stopped(quick, repetitions):
        """Nothing."""
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(benchmarks, "GROUPS", {"few": few, "stopped": stopped})
    path = tmp_path / "run.json"
    assert benchmarks.main(["--json", str(path)]) == 130
    assert f"Whole groups are in {path}" in capsys.readouterr().err
    assert len(json.loads(path.read_text("utf-8"))["rows"]) == 2


@pytest.mark.parametrize(
    "arguments", [["--repetitions", "0"], ["--json", "no/such/folder/run.json"]]
)
def test_bad_options_are_refused_before_a_measurement(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        benchmarks.main(arguments)
    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_packages_that_are_missing_are_left_out(monkeypatch):
    from benchmarks import peers

    y, p = benchmarks.data(200, 3)

    def missing(y, p):
        raise ModuleNotFoundError("a peer")

    work = peers.Work(
        peers.exact(lambda y, p: 1.0),
        {"missing": missing, "same": peers.exact(lambda y, p: 1.0)},
    )
    monkeypatch.setitem(peers.WORK, "one", work)
    assert [*peers.side_by_side("one", y, p)] == ["keras_selcal", "same"]
    work.peers["different"] = peers.exact(lambda y, p: 1.01)
    with pytest.raises(AssertionError, match="one by different"):
        peers.side_by_side("one", y, p)
