"""Every example in the docstrings, the README and the guides runs as written."""

import doctest
import importlib
import json
import pkgutil
import re
import runpy
import shlex
from pathlib import Path

import execute
import pytest

import keras_selcal
import recipes
from recipes.cli import parse

MODULES = [
    module.name
    for package in (keras_selcal, recipes)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
GUIDES = [README, *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.backend_free
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.backend_free
def test_public_names_have_docstrings_and_examples():
    for name in keras_selcal.__all__:
        thing = getattr(keras_selcal, name)
        if name != "__version__":
            assert thing.__doc__, name
        if isinstance(thing, type):
            assert ">>>" in thing.__doc__ or "```python" in thing.__doc__, name


@pytest.mark.parametrize(
    "guide",
    # The README's are what a new user tries, on the backend that is installed.
    [
        README,
        *(pytest.param(guide, marks=pytest.mark.backend_free) for guide in GUIDES[1:]),
    ],
    ids=lambda path: path.stem,
)
def test_guide_examples(guide):
    """Blocks of Python, and of commands on files, share one session, in order."""
    execute.with_outputs(guide.name, guide.read_text("utf-8"))


@pytest.mark.backend_free
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials(tutorial, tmp_path, monkeypatch):
    """Each runs at reduced size; the one on intents, with data of the same form."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_SELCAL_QUICK", "1")
    data = {
        part: [
            [f"{word}{i} please {part} case{j}", f"intent{i}"]
            for i in range(10)
            for word in ("word", "thing")
            for j in range(15)
        ]
        for part in ("train", "val", "test")
    }
    data["test"].reverse()  # Otherwise these are the features of "val".
    for part in ("oos_train", "oos_val", "oos_test"):
        data[part] = [["something else", "oos"]] * 20
    path = tmp_path / "clinc.json"
    path.write_text(json.dumps(data))
    monkeypatch.setenv("CLINC150", str(path))
    runpy.run_path(str(tutorial))


@pytest.mark.backend_free
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_links_lead_to_files(guide):
    drawn = (ROOT / "docs" / "pictures.py").read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", guide.read_text("utf-8")):
        # The site draws its pictures when it is built.
        generated = guide.stem != "README" and f'"{Path(target).stem}": ' in drawn
        assert generated or (guide.parent / target).exists(), target


@pytest.mark.backend_free
def test_readme_lists_every_loss():
    text = README.read_text("utf-8")
    for name in keras_selcal.losses.__all__:
        if name not in ("Batch", "ClassificationLoss", "get"):
            assert f"`{name}`" in text, name


@pytest.mark.backend_free
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_commands_that_train_have_options_that_exist(guide):
    """They take hours, so that only their arguments are read."""
    text = guide.read_text("utf-8").replace("\\\n", " ")
    for command in re.findall(r"^python -m recipes (.*)$", text, flags=re.M):
        parse(shlex.split(command, comments=True))
    for code in re.findall(r"^```py\n(.*?)^```$", text, flags=re.M | re.DOTALL):
        compile(code, str(guide), "exec")
