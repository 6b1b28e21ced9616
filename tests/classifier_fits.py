"""Comparison of classifiers that were fitted on the same samples in other forms."""

from dataclasses import replace

import pytest


def assert_same_classifier(found, expected):
    """A backend may round outputs of another shape differently, and a day may pass."""
    assert found.threshold == pytest.approx(expected.threshold, rel=1e-6)
    ours, theirs = found.record, expected.record
    assert ours.confidence == pytest.approx(theirs.confidence, rel=1e-6)
    rest = {"confidence": (), "date": ""}
    assert replace(ours, **rest) == replace(theirs, **rest)
