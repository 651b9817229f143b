"""`noisesieve evaluate --plant`: measure a run without right labels, by flips that are planted for the purpose.

Flips are planted over all rows, with the label pairs of the run's own suspects, and the dataset is scanned again with
the same settings. Recall is the share of the flips that are flagged. Precision is the share of flips among the rows
that are flagged now and were not before: both are counted, and nothing is estimated. They hold for flips that are drawn
from confusions, which are easier to find than human mistakes: only people can tell about those (`review --probe`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from noisesieve.commands._open_run import is_own_run, require_same_rows, settings_of_run
from noisesieve.commands._own_vectors import OwnVectors, kind_of_vectors, refuse_vectors
from noisesieve.commands.measure_settings import EvaluateSettings
from noisesieve.commands.scan import scan
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import StateError
from noisesieve.core.files import digest
from noisesieve.core.progress import Session
from noisesieve.core.records import Index, Ints
from noisesieve.learn.networks.pretrained import weights_file
from noisesieve.measure.planting import PlantedEvaluation, draw_flips, measure_planted
from noisesieve.report.report import Report
from noisesieve.sources.containers import read_index


def evaluate_by_planting(
    report: Report, settings: EvaluateSettings, share: float, session: Session
) -> PlantedEvaluation:
    """Plant flips into `share` of the rows, scan again, and measure."""
    refuse_vectors(report, "evaluate --plant", "predictions")
    scanned, seed = settings_of_run(report, settings.moved), settings.seed
    weights = scanned.training.weights
    if weights is not None and not is_own_run(report):  # refused if it would have to be downloaded
        weights_file(weights, report.summary.training.recipe.backbone, download=False)
    if kind_of_vectors(report) == "embeddings":
        _require_same_embeddings(report, scanned, session)
    readable = report.verdicts != "unreadable"
    chosen, labels = draw_flips(report, readable, share=share, seed=seed)
    mark = digest({"run": report.facts.settings, "data": report.facts.fingerprint, "rows": "all"})[:8]
    folder = report.path.parent / f"planted-{share:g}-seed-{seed}-{mark}"  # one folder per run that was evaluated
    session.note(f"{len(chosen):,} flips planted into {int(readable.sum()):,} rows; scanning into {folder}.")
    again = scan(
        replace(scanned, output=folder, review=False), session=session, relabel=_relabel(report, chosen, labels)
    )
    assert again is not None  # there is one process
    planted = np.zeros(len(readable), dtype=np.bool_)
    planted[chosen] = True
    return measure_planted(report, again, planted)


def _require_same_embeddings(report: Report, scanned: ScanSettings, session: Session) -> None:
    """Refuse embeddings that are not there any more, or not those that the run was made from."""
    if scanned.embeddings is None:
        raise StateError("The run was scanned from an array of Python.", "Save it, and scan with --embeddings FILE.")
    source = replace(scanned.source, images=False)
    own = OwnVectors.read(replace(scanned, source=source), read_index(source), session)
    if own is None or own.content() != report.facts.settings["vectors"]["sha256"]:
        raise StateError(f"{scanned.embeddings}: changed since the run.", "Scan again, or put the old file back.")


def _relabel(report: Report, chosen: Ints, labels: list[str]) -> Callable[[Index], Index]:
    def relabel(index: Index) -> Index:
        require_same_rows(report, index)
        changed = index.column("labels").changed(dict(zip(chosen.tolist(), labels, strict=True)))
        trusted = index.trusted
        if trusted is not None:  # a trusted row is never flagged, so a flip there could not be found
            trusted = trusted.copy()
            trusted[chosen] = False
        return replace(index, labels=changed, trusted=trusted)

    return relabel
