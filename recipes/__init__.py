"""Recipes: train and evaluate the paper's models, `python -m recipes --help`."""
