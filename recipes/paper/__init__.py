"""The paper's published numbers, and its tables and figures made from runs.

Zhou et al., *Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse Focal
Loss*.
"""
