"""`noisesieve scan`. Read this file first: the way of the data, one call per stage.

    INDEX   sources   path → Index           which images, with which labels
    DECODE  pixels    Index → Pixels         every image once, uint8 at training size
    TRAIN   learn     Pixels → Scores        a CR-regularized ResNet with the sieve, or CR heads on frozen features
    DECIDE  sieve     Scores → Verdicts      the closed-form threshold, a rank, a probability
    RECORD  report    Verdicts → run folder
    SHOW    review    run folder → review.html

Row i is the same image at every stage. An image that cannot be read keeps its row and takes no part in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from noisesieve.commands._dataset import prepare, validate_settings
from noisesieve.commands._own_vectors import validate_vectors
from noisesieve.commands._record import decide_rows, record
from noisesieve.commands._run import bring_up_to_date, open_run, show
from noisesieve.commands._train import train, train_network
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.progress import NullWatcher, Session
from noisesieve.core.records import Index
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.training_data import TrainingTask
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.report import Report
from noisesieve.sources.containers import read_index

__all__ = ["Report", "scan"]


def scan(
    settings: ScanSettings,
    *,
    session: Session | None = None,
    relabel: Callable[[Index], Index] = lambda index: index,
) -> Report | None:
    """Scan a dataset into its run folder and return the report. Under torchrun every rank calls this.

    Ranks other than 0 only help with the training and return None. `relabel` may replace labels of the index before
    training: `evaluate --plant` uses it.
    """
    validate_vectors(settings)
    validate_settings(settings)
    if settings.has_vectors:
        settings = replace(settings, source=replace(settings.source, images=False))
    joined = TrainingSession.join(settings.device, session, deterministic=settings.deterministic)
    if joined.processes.is_leader:
        try:
            return _run_stages(settings, joined, relabel)
        finally:
            joined.processes.release()  # without a training that they share, the other ranks end
    if folder := joined.processes.broadcast("", joined.pause):
        quiet = replace(joined, watcher=NullWatcher())
        train_network(TrainingTask.load(Path(folder)), quiet)
    return None


def _run_stages(settings: ScanSettings, session: TrainingSession, relabel: Callable[[Index], Index]) -> Report:
    """Run every stage, in order. This is rank 0, or the only process."""
    index = relabel(read_index(settings.source))  # INDEX
    with open_run(index, settings, session) as run, Decoder(settings.pixels, session) as decoder:
        prepared = prepare(index, settings, run, decoder, session)  # DECODE
        if prepared is None:
            return bring_up_to_date(run, index, settings, decoder, session)  # the same run is finished already
        dataset, begun = prepared
        trained = train(dataset, settings, run, begun, decoder, session)  # TRAIN
        verdicts = decide_rows(trained)  # DECIDE
        report = record(trained, verdicts, run, begun, settings, session)  # RECORD
        show(report, index, settings, decoder, session, decoded=dataset.decoded)  # SHOW
        return report
