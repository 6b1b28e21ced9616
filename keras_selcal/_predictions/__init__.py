"""Predictions with labels: what they mean, and their rows as tensors or arrays."""
