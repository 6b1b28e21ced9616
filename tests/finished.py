"""Finished runs without training."""

import zipfile

from recipes.runs import SPLITS

ROW = {"epoch": 1, "loss": 0.5, "accuracy": 0.5, "val_loss": 0.25, "val_accuracy": 0.5}


class Model:
    """Stands in for a Keras model: `save` writes an archive without content."""

    def save(self, path):
        zipfile.ZipFile(path, "w").close()


def finish(run, predictions, *, environment=None, history=(ROW,)):
    """Writes all results of a run that has claimed its folder.

    Args:
        run: the run.
        predictions: those of both splits, or a function that returns those of a split.
        environment: the content of `environment.json`.
        history: the rows of `history.csv`.
    """
    for split in SPLITS:
        found = predictions() if callable(predictions) else predictions
        run.write_predictions(split, found)
    run.write_history(list(history))
    run.save_model(Model())
    run.finish(environment or {})
    return run
