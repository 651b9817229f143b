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
    from noisesieve.report.report import Report


def scan(path: str | Path, **options: Any) -> Report:
    """Scan a dataset and return its report. Writes a run folder, as `noisesieve scan` does.

    Options are those of the command line, with underscores: `output="run"`, `epochs=20`, `label_column="class"`.
    `embeddings` and `predictions` may also be arrays, one row per row of the table; `classes` then names the columns of
    the predictions.
    """
    import tempfile

    from noisesieve.commands.scan import scan as run
    from noisesieve.commands.scan_settings import scan_settings

    with tempfile.TemporaryDirectory(prefix="noisesieve-") as folder:
        for name in ("embeddings", "predictions"):
            if options.get(name) is not None and not isinstance(options[name], str | Path):
                options |= _saved(options[name], name, Path(folder), options.get("classes"))
        report = run(scan_settings(path, **options))
    if report is None:
        raise RuntimeError("Only rank 0 of a torchrun has a report.")
    return report


def _saved(values: Any, name: str, folder: Path, classes: Any) -> dict[str, Any]:
    """Save an array, a list or a table to a file, and return the options that name it."""
    import numpy as np

    from noisesieve.core.errors import UsageError

    columns = getattr(values, "column_names", None)  # of pyarrow
    columns = getattr(values, "columns", None) if columns is None else columns  # of pandas
    array = np.asarray(values.detach() if hasattr(values, "detach") else values)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise UsageError(f"{name}: not an array of numbers with one row per row of the table.")
    file = folder / f".array-{name}.npy"
    np.save(file, array)
    if name == "embeddings":
        return {name: file}
    if classes is None and columns is not None:
        classes = columns
    given = classes if isinstance(classes, str) or classes is None else tuple(str(label) for label in classes)
    return {name: file} if given is None else {name: file, "classes": given}


def read_report(path: str | Path) -> Report:
    """Open the report of a finished run: its folder, or a report.parquet."""
    from noisesieve.report.report import read_report as read

    return read(path)


def __getattr__(name: str) -> Any:
    if name == "Report":
        from noisesieve.report.report import Report

        return Report
    raise AttributeError(f"module 'noisesieve' has no attribute {name!r}")
