"""Classifiers and networks that are saved on one backend and loaded on the others."""

import os
from pathlib import Path

import pytest
from processes import finish, interpreters, start

PYTHONS = interpreters()


@pytest.mark.backend_free
@pytest.mark.skipif(
    len(PYTHONS) == 1, reason="no other backend at hand: see KERAS_SELCAL_PYTHONS"
)
def test_files_saved_on_each_backend_load_on_the_others(tmp_path):
    worker = Path(__file__).parents[1] / "cross_worker.py"
    command = [worker, os.getpid(), tmp_path, *PYTHONS]
    finish(
        *(
            start(*command, python=python, KERAS_BACKEND=backend)
            for backend, python in PYTHONS.items()
        )
    )
