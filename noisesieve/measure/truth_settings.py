"""Where the right labels are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from noisesieve.core.options import DATA, Settings, option


@dataclass(frozen=True)
class TruthSettings(Settings):
    """Where the right labels are."""

    truth: Path | None = option(
        None, "Table of right labels, with the columns path (or id) and label.", DATA, metavar="FILE"
    )
    truth_column: str | None = option(None, "Column with the right labels. Default: true_label.", DATA, metavar="NAME")
