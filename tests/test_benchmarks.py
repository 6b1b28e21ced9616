"""The benchmarks run, and ratios of CPU time stay within bounds on a busy machine."""

import json

import pytest

benchmarks = pytest.importorskip("benchmarks.__main__")

# Several times what is measured on a quiet machine (benchmarks/README.md).
BOUNDS = {"ece": 8.0, "cwece": 25.0, "aurc": 12.0, "coverage_at_risk": 15.0}


@pytest.mark.backend_free
def test_exact_metrics_cost_a_few_passes_over_the_predictions():
    """CPU times of one process, the least of several runs: other work on the machine
    changes them little, and both sides alike.
    """
    y, p = benchmarks.data(50_000, 10)
    timed = {"np.max": lambda: p.max(-1)}
    for name in BOUNDS:
        timed[name] = lambda f=benchmarks.EXACT[name]: f(y, p)
    rows = benchmarks.group("", "np.max", timed, 7)
    ratios = {name: rows[f"{name}, "]["ratio"] for name in BOUNDS}
    assert all(ratios[name] <= BOUNDS[name] for name in BOUNDS), ratios


def test_a_run_is_compared_with_a_saved_one(tmp_path, capsys, monkeypatch):
    def few(quick, repetitions):
        yield benchmarks.rows_of("2 × 2", "a", {"a": 2.0, "b": 6.0})

    monkeypatch.setattr(benchmarks, "GROUPS", {"few": few})
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"b, 2 × 2": {"ratio": 1.5}}))
    benchmarks.main(["--groups", "few", "--json", str(path), "--compare", str(path)])
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("b, "))
    assert line.split()[4:7] == ["6.000", "3.00", "1.5"]
    assert "slower" in line
    assert json.loads(path.read_text())["b, 2 × 2"]["ratio"] == 3.0
