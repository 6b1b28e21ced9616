"""The map in CONTRIBUTING.md holds: layers, no cycles, no private imports."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from keras import ops

import keras_selcal

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[1]

# A package may import from those above it in this list, and from itself.
LAYERS = [
    "keras_selcal._version",
    "keras_selcal._core",
    "keras_selcal.csf",
    "keras_selcal.functional",
    "keras_selcal.losses",
    "keras_selcal.metrics",
    "keras_selcal.metric_table",
    "keras_selcal.calibrators",
    "keras_selcal.selective",
    "keras_selcal.conformal",
    "keras_selcal.analysis",
    "keras_selcal.stacks",
    "keras_selcal.plots",
    "keras_selcal.report",
    "keras_selcal.callbacks",
    "keras_selcal.cli",
    "keras_selcal.__main__",
    "keras_selcal._api",
    "keras_selcal",
    "recipes",
]


def module_name(path):
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): ast.parse(path.read_text("utf-8"))
    for package in ("keras_selcal", "recipes")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imports_of(tree):
    """Yields the modules that a module imports, lazily or for types alone included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] not in ("keras_selcal", "recipes"):
                continue
            while name not in MODULES:
                name = name.rpartition(".")[0]
            yield name


def package_of(module):
    """Returns the room of a module: the longest entry of LAYERS that it lies in."""
    inside = [room for room in LAYERS if f"{module}.".startswith(f"{room}.")]
    return max(inside, key=len)


def test_every_module_has_a_layer():
    rooms = {package_of(module) for module in MODULES}
    assert rooms <= set(LAYERS)
    # What lies in the root package's own layer is its __init__ alone.
    assert [m for m in MODULES if package_of(m) == "keras_selcal"] == ["keras_selcal"]


def test_imports_go_down():
    for module, tree in MODULES.items():
        own = LAYERS.index(package_of(module))
        for imported in imports_of(tree):
            assert LAYERS.index(package_of(imported)) <= own, (module, imported)


def test_no_module_imports_itself_in_a_circle():
    graph = {
        module: {name for name in imports_of(tree) if name != module}
        for module, tree in MODULES.items()
    }
    # Raises CycleError, which shows the circle.
    TopologicalSorter(graph).prepare()


def test_private_names_stay_in_their_package():
    nodes = [(module, node) for module in MODULES for node in ast.walk(MODULES[module])]
    for module, node in nodes:
        if not isinstance(node, ast.ImportFrom):
            continue
        names = [*node.module.split("."), *(alias.name for alias in node.names)]
        private = [
            name
            for name in names
            if name.startswith("_") and name not in ("_core", "_version", "__version__")
        ]
        if private and names[0] in ("keras_selcal", "recipes"):
            home = node.module.partition("._")[0]
            assert f"{module}.".startswith(f"{home}."), (module, private)


def test_the_au_loss_takes_the_path_of_the_map():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    path = next(part for part in text.split("\n\n") if part.startswith("`AULoss` in"))
    listed = re.findall(r"`(\w+/\w+\.py)`", path.partition("`tests/")[0])
    package = Path(keras_selcal.__file__).parent
    seen = set()

    def note(frame, event, argument):
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(package):
            seen.add(file.relative_to(package).as_posix())

    logits = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
    logits, labels = map(ops.convert_to_tensor, (logits, np.arange(24) % 5))
    loss, before = keras_selcal.AULoss(from_logits=True), sys.getprofile()
    sys.setprofile(note)
    try:
        loss(labels, logits)
    finally:
        sys.setprofile(before)
    assert seen == set(listed)
