"""The commands that compare losses: `study` and `compare`."""

from typing import Annotated, Any

from recipes.request import Positive, names_in


def study(
    *,
    data_dir: str | None = None,
    cifar10: str | None = None,
    adult: str | None = None,
    bed: str | None = None,
    protocol: str | None = None,
    losses: str | None = None,
    seeds: Positive = 5,
    out: str = "runs/study",
    page: bool = False,
) -> None:
    """Train the missing runs of the study in recipes/STUDY.md.

    Results are appended to recipes/study.csv: a study that was stopped continues by the
    same command. Beds whose data is not given are left out.

    Args:
        data_dir: folder with text/ and labels/, the published files of texts and of
            people's labels.
        cifar10: path of CIFAR-10, a folder or a file.
        adult: folder with adult.data and adult.test.
        bed: names, separated by commas (default: all).
        protocol: names, separated by commas (default: all).
        losses: names, separated by commas (default: all).
        seeds: runs of each loss.
        out: folder for the embeddings of texts.
        page: train nothing; write the tables of recipes/STUDY.md from study.csv.
    """
    from recipes import study as runs
    from recipes import study_page

    if page:
        study_page.update(runs.PAGE, runs.read_results())
        return
    plan = runs.Study(runs.Folders(data_dir, cifar10, adult, out))
    names: Any = {"beds": bed, "protocols": protocol, "losses": losses}
    names = {name: names_in(name, text) for name, text in names.items()}
    for row in plan.run(seeds=seeds, **names):
        print(*(row[name] for name in ("bed", "loss", "trial", "seed")), flush=True)
    for missing, reason in plan.missing.items():
        print(f"left out: {missing}: {reason}")


def compare(
    *,
    dataset: str,
    model: str | None = None,
    losses: str | None = None,
    seeds: Annotated[int, 2] = 5,
    epochs: Positive = 20,
    data_dir: str | None = None,
    out: str = "runs/compare",
) -> None:
    """Train on your own data with several losses, and say which one to use.

    Examples:
      python -m recipes compare --dataset npz:DATA.npz
      python -m recipes compare --dataset text:TICKETS.csv --losses xe,xe_dropout,au

    Every loss gets the same network, epochs and seeds. NLL and AURC after temperature
    scaling decide, at the epoch with the best validation NLL. A comparison that was
    stopped continues by the same command.

    Args:
        dataset: folder:PATH with a folder of images for each class; npz:PATH with
            arrays x and y, or x_train, y_train, x_test and y_test; text:PATH, a CSV
            file with the columns text and label (else the first and the last one); or a
            name that `list` shows.
        model: mlp, cnn, or for images a name that `list` shows (default: cnn for
            images, mlp for others).
        losses: names of the study, separated by commas; the others are compared with
            the first (default: xe,xe_smoothed,xe_dropout,focal,kde_xe,aurc,au).
        seeds: runs of each loss.
        epochs: length of each training.
        data_dir: path of a data set that `list` shows.
        out: folder for results.csv and report.html.
    """
    from recipes import compare as comparison

    comparison.compare(
        dataset,
        model=model,
        losses=names_in("losses", losses),
        seeds=seeds,
        epochs=epochs,
        data_dir=data_dir,
        out=out,
    )
