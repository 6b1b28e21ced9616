"""Files that appear complete or not at all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path of the same name to write to, whose file is moved to `path` at the
    end; after an error, `path` is as it was.
    """
    path = path.resolve()  # of a link, the file is replaced
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder) / path.name
        yield written
        written.replace(path)
