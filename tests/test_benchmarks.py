"""The benchmarks compare like with like."""

import numpy as np
import pytest

cells = pytest.importorskip("benchmarks.cells")
peers = pytest.importorskip("benchmarks.peers")
risk_monitor = pytest.importorskip("benchmarks.risk_monitor")


@pytest.mark.backend_free
def test_packages_that_are_missing_are_left_out(monkeypatch):
    y, p = peers.data(200, 3)

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


def test_cells_lower_the_error_of_an_untrained_network(monkeypatch):
    monkeypatch.setattr(cells, "CELLS", (256, 4096))
    monkeypatch.setattr(cells, "METRICS", {"AURC": cells.METRICS["`AURC`"]})
    [few, many] = cells.errors(*cells.untrained(2000))[0]
    assert 0 < many < few < 0.1


@pytest.mark.backend_free
def test_a_risk_far_above_the_limit_is_noticed_soon():
    assert (risk_monitor.delays(1000, 0.5, streams=3, seed=0) < 200).all()
    rng = np.random.default_rng(0)
    for risk in risk_monitor.QUIET.values():
        assert risk(np.arange(10_000)).max() <= risk_monitor.LIMIT
        assert risk_monitor.alarm_at(risk, rng, 500) > 0
