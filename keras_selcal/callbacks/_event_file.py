"""TensorBoard's event files, written without TensorFlow or PyTorch."""

import os
import struct
import time
from collections.abc import Mapping
from typing import Any

from keras_selcal._extras import require

# TensorBoard's code for the colours of a PNG: red, green, blue and opacity.
_RGBA = 4


def require_tensorboard() -> Any:
    """Returns TensorBoard's classes of writers, events and summaries."""
    event, summary, writer = (
        require(f"tensorboard.{module}", "`log_dir`")
        for module in (
            "compat.proto.event_pb2",
            "compat.proto.summary_pb2",
            "summary.writer.event_file_writer",
        )
    )
    return writer.EventFileWriter, event.Event, summary.Summary


class EventFile:
    """One event file in a folder.

    Args:
        log_dir: the folder, which is created if it does not exist.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        writer, self._event, self._summary = require_tensorboard()
        self._writer = writer(os.fspath(log_dir))
        self.closed = False

    def write(
        self, step: int, scalars: Mapping[str, float], images: Mapping[str, bytes]
    ) -> None:
        """Writes numbers and PNG images by their tags, and flushes."""
        value = self._summary.Value
        values = [value(tag=tag, simple_value=x) for tag, x in scalars.items()]
        for tag, png in images.items():
            width, height = struct.unpack(">II", png[16:24])
            image = self._summary.Image(
                width=width, height=height, colorspace=_RGBA, encoded_image_string=png
            )
            values.append(value(tag=tag, image=image))
        self._writer.add_event(
            self._event(
                wall_time=time.time(), step=step, summary=self._summary(value=values)
            )
        )
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
        self.closed = True
