"""The experiment on the paper's central claim: does AU calibrate better?

`python -m recipes.experiment --bed fashion --data-dir DATA` trains what `results.csv`
does not have yet. EXPERIMENT.md states the protocol and the rule of the verdicts, which
`verdicts.py` computes from that file.
"""
