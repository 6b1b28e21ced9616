"""Formulas that both floors need, written once: each takes `xp`."""
