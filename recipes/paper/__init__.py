"""The paper's published figures, and its tables made anew from runs.

Zhou et al., *Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse Focal
Loss*.
"""
