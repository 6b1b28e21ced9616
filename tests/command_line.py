"""Predictions in files, and the command line to run on them."""

import numpy as np
import pytest

from keras_selcal.cli import main

LABELS = np.array([0, 1, 1, 2])
PROBS = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [0.3, 0.3, 0.4]])
NAMES = ["cat", "dog", "<b>cow</b>"]


def run(*arguments):
    main(["report", "--bootstrap", "20", *arguments])


def refused(capsys, arguments, told):
    with pytest.raises(SystemExit) as exit_:
        run(*arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
