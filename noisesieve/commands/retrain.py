"""`noisesieve retrain`: models on the clean / corrupted split of a finished run, compared without truth.

A frozen run: heads on its stored features (_retrain_heads.py). A network: _retrain_network.py. Both train in several
ways, and save the way that predicts most of the given labels that it was not shown.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from noisesieve.commands._own_vectors import kind_of_vectors, refuse_vectors
from noisesieve.commands._retrain_heads import retrain_heads
from noisesieve.commands._retrain_network import retrain_network, train_task
from noisesieve.commands._retrain_summaries import RetrainSummary
from noisesieve.commands._retrain_task import RetrainTask
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.errors import UsageError
from noisesieve.core.progress import NullWatcher, Session
from noisesieve.learn.device import require_device
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.plan import is_gpu
from noisesieve.report.report import Report, read_report
from noisesieve.retrain.retrain_settings import RetrainOptions

__all__ = ["RetrainSummary", "retrain"]


def retrain(settings: RetrainSettings, *, session: Session | None = None) -> RetrainSummary | None:
    """Retrain a run's model into its own folder and return retrain.json. Under torchrun every rank calls this.

    Heads on stored features for a frozen run, unless the user wants the whole network.

    Ranks other than 0 only help with the training and return None.
    """
    require_device(settings.device)
    joined = TrainingSession.join(settings.device, session, deterministic=settings.deterministic)
    if joined.processes.is_leader:
        try:
            return _retrain(settings, joined)
        finally:
            joined.processes.broadcast("")  # no further training: the other ranks end
    quiet = replace(joined, watcher=NullWatcher())
    while folder := joined.processes.broadcast("", joined.pause):
        train_task(RetrainTask.load(Path(folder)), quiet)
    return None


def _retrain(settings: RetrainSettings, session: TrainingSession) -> RetrainSummary:
    report = read_report(settings.run)
    refuse_vectors(report, "retrain", "predictions")
    if _trains_heads(report, settings, session.device.type):
        return retrain_heads(report, settings, session)
    return retrain_network(report, settings, session)


def _trains_heads(report: Report, settings: RetrainSettings, device: str) -> bool:
    """Return True if heads on the run's features are trained. Options of a network are refused then."""
    if not report.summary.training.recipe.frozen:
        if settings.freeze:
            raise UsageError("--freeze: the run trained a whole network and has no features.", "Leave it out.")
        return False
    vectors = kind_of_vectors(report) is not None
    if vectors and settings.freeze is False:
        raise UsageError("--no-freeze: the run has embeddings and no images.", "Leave it out.")
    if not (vectors or settings.freeze or (settings.freeze is None and not is_gpu(device))):
        return False
    plain = RetrainOptions(seed=settings.training.seed, relabel=settings.training.relabel)
    if settings.training != plain:
        name = next(name for name, value in vars(settings.training).items() if value != getattr(plain, name))
        flag = "--" + name.replace("_", "-")
        raise UsageError(f"{flag}: only for a network; here heads are trained.", "Leave it out, or pass --no-freeze.")
    if settings.candidates:
        raise UsageError("--candidates: heads are trained in seconds, in every way.", "Leave it out.")
    return True
