"""noisesieve finds wrong labels in image datasets: confidence-regularized training, a closed-form threshold, a report.

    import noisesieve
    report = noisesieve.scan("./dataset")
    report.to_pandas()

Importing it does not load torch or pandas; calling it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Report", "__version__", "read_report", "scan"]

if TYPE_CHECKING:
    from noisesieve.report import Report


def scan(path: str | Path, **options: Any) -> Report:
    """Scan a dataset and return its report. Writes a run folder, as `noisesieve scan` does.

    Options are those of the command line, with underscores: `output="run"`, `epochs=20`, `label_column="class"`.
    `embeddings` and `predictions` may also be arrays, one row per row of the table; `classes` then names the columns of
    the predictions.
    """
    import tempfile

    from noisesieve.commands.scan import scan as run
    from noisesieve.core.settings import scan_settings

    with tempfile.TemporaryDirectory(prefix="noisesieve-") as folder:
        for name in ("embeddings", "predictions"):
            if hasattr(options.get(name), "__array__"):
                import numpy as np

                np.save(f"{folder}/{name}.npy", np.asarray(options[name]))
                options[name] = Path(folder) / f"{name}.npy"
        report = run(scan_settings(path, **options))
    if report is None:
        raise RuntimeError("Only rank 0 of a torchrun has a report.")
    return report


def read_report(path: str | Path) -> Report:
    """Open the report of a finished run: its folder, or a report.parquet."""
    from noisesieve.report import read_report as read

    return read(path)


def __getattr__(name: str) -> Any:
    if name == "Report":
        from noisesieve.report import Report

        return Report
    raise AttributeError(f"module 'noisesieve' has no attribute {name!r}")
