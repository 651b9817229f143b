"""The stored features of one depth of a backbone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from noisesieve.core.row_store import RowFile

Halves = npt.NDArray[np.float16]


class DepthFile(RowFile):
    """The features of one depth: rows of (views, width) in float16."""

    def __init__(self, folder: Path, name: str, *, views: int, width: int) -> None:
        super().__init__(folder / f"{name}.f16", shape=(views, width), dtype="<f2")
        self.name = name
