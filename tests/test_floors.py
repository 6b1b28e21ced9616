"""Two floors: what needs Keras, and what works with NumPy alone."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from processes import finish, start

import keras_selcal

pytestmark = pytest.mark.backend_free

PACKAGE = Path(keras_selcal.__file__).parent
BACKENDS = {"jax", "tensorflow", "torch"}

# A package imports from itself and from those above it in this list.
ROOMS = [
    "_version",
    "_extras",
    "_writing",
    "_validation",
    "_arrays",
    "_segments",
    "_resampling",
    "_backend",
    "_lazy",
    "_saving",
    "_formulas",
    "_predictions",
    "csf",
    "losses",
    "metrics",
    "calibrators",
    "functional",
    "metric_table",
    "selective",
    "conformal",
    "stacks",
    "plots",
    "report",
    "callbacks",
    "cli",
    "__main__",
    "_api",
    "__init__",
]


def module_name(path):
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): ast.parse(path.read_text("utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(tree):
    """Yields the full name of each import, lazy ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(tree):
    """Yields the modules of keras_selcal among the imports."""
    for name in imports(tree):
        head, _, name = name.partition(".")
        while head == "keras_selcal" and name and name not in MODULES:
            name = name.rpartition(".")[0]
        if head == "keras_selcal" and name:
            yield name


def room(module):
    return module.partition(".")[0]


def test_imports_go_down():
    assert {room(module) for module in MODULES} <= set(ROOMS)
    for module, tree in MODULES.items():
        for imported in own_imports(tree):
            allowed = ROOMS.index(room(imported)) <= ROOMS.index(room(module))
            assert allowed, f"{module} imports {imported}"


def test_no_module_imports_itself_in_a_circle():
    graph = {
        module: {*own_imports(tree)} - {module} for module, tree in MODULES.items()
    }
    # Raises CycleError, which shows the circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    "module", [module for module in MODULES if room(module) != "_backend"]
)
def test_one_room_names_backends(module):
    for name in imports(MODULES[module]):
        assert name.partition(".")[0] not in BACKENDS, name
        assert not f"{name}.".startswith("keras.src."), name
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert called != "backend", f"line {node.lineno} asks for the backend"


# What works after `pip install keras-selcal` alone, where Keras cannot be imported.
WITHOUT_KERAS = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("keras", "jax", "tensorflow", "torch"):
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
import numpy as np
import keras_selcal
from keras_selcal import functional as F
from keras_selcal import calibrators, conformal, csf, selective

rng = np.random.default_rng(0)
z = rng.normal(size=(200, 3), scale=3)
y = (z / 3 + rng.gumbel(size=z.shape)).argmax(-1)
p = np.exp(z - z.max(-1, keepdims=True))
p /= p.sum(-1, keepdims=True)
"""
USES = {
    "functions": """
for name in (
    "ece cwece smooth_ece kde_ece brier brier_decomposition nll refinement aurc au "
    "excess_aurc augrc failure_auroc risk_coverage_curve reliability_curve"
).split():
    getattr(F, name)(y, p)
F.risk_at_coverage(y, p, 0.8), F.coverage_at_risk(y, p, 0.2)
F.ood_auroc(p[:100], p[100:]), F.scod_aurc(y[:100], p[:100], p[100:])
F.soft_cdf(p.max(-1)), F.au_weights(p.max(-1)), F.aurc_weights(p.max(-1))
""",
    "scores": """
for name in ("msp", "margin", "neg_entropy", "doctor", "gen", "energy"):
    assert csf.get(name)(z if name == "energy" else p).shape == (200,)
csf.choose(z, y)
""",
    "calibrators": """
for make in (
    calibrators.TemperatureScaling,
    calibrators.HistogramBinning,
    calibrators.MetaMis,
    # These need SciPy or scikit-learn.
    calibrators.VectorScaling,
    calibrators.DirichletCalibration,
    calibrators.IsotonicCalibration,
):
    calibrator = make().fit(z, y)
    found = calibrator(z)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-4)
    calibrator.save("calibrator.npz")
    again = calibrators.Calibrator.load("calibrator.npz")
    np.testing.assert_allclose(again(z), found, rtol=1e-6)
""",
    "thresholds": """
selective.select_threshold(p.max(-1), p.argmax(-1) == y, coverage=0.5)
selective.select_threshold(p.max(-1), p.argmax(-1) == y, risk=0.5, delta=0.1)
conformal.conformal_threshold(conformal.conformal_scores(p, y, method="aps"), 0.1)
""",
    "policies": """
policy = keras_selcal.Policy.fit(
    z, y, coverage=0.5, calibrator=calibrators.TemperatureScaling()
)
policy.save("policy.json")
again = keras_selcal.Policy.load("policy.json")
np.testing.assert_array_equal(again.predict(z).labels, policy.predict(z).labels)
keras_selcal.RiskMonitor(0.1).update(p.argmax(-1) != y)
""",
    "report": """
report = keras_selcal.CalibrationReport(y, p, bootstrap=10)
report.to_html("report.html")
""",
    "commands": """
from keras_selcal.cli import main
np.savez("p.npz", probs=p, labels=y)
assert not main(["report", "p.npz"])
assert not main(["fit", "p.npz", "--coverage", "0.5"])
assert not main(["apply", "policy.json", "p.npz"])
""",
}


@pytest.mark.parametrize("use", USES)
def test_numpy_suffices_for(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(start("-W", "ignore", "-c", WITHOUT_KERAS + USES[use]))
