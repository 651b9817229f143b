"""`noisesieve apply`: decision files + dataset → a corrected dataset. The dataset itself is never changed.

decisions   decision files → one outcome per row, checked against the report and the images
sources     dataset + outcomes → the corrected dataset, with an audit log
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.commands._corrected_dataset import (
    DECISION_COLUMNS,
    kept_decisions,
    scan_options,
    vector_options,
    write_dataset,
)
from noisesieve.commands._open_run import (
    align_to_report,
    is_own_run,
    pixel_settings_of_run,
    read_outcomes,
    refuse_output_in_dataset,
    settings_of_run,
)
from noisesieve.commands._own_vectors import kind_of_vectors
from noisesieve.commands.command_settings import ApplySettings
from noisesieve.core.columns import Hashes
from noisesieve.core.csv_file import write_csv_rows
from noisesieve.core.errors import InputError, OutputError, StateError, UsageError
from noisesieve.core.files import Document, refuse_existing_folder, write_json
from noisesieve.core.progress import Session
from noisesieve.core.publish import finish_publishing, publish, stage
from noisesieve.core.records import Index
from noisesieve.decisions.marks import DecisionMark, decision_key
from noisesieve.decisions.read import PAGE_DECISIONS
from noisesieve.decisions.resolve import Outcome, accept_above, audit_table, decided_before
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.report import Report, read_report
from noisesieve.report.waivers import add_waivers, waiver_of
from noisesieve.sources.containers import narrow, read_whole
from noisesieve.sources.rewrite_table import REWRITERS, RowChange
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import TABLE_SUFFIXES
from noisesieve.sources.write_table import table_kind


@dataclass(frozen=True)
class LabelMove:
    """How many labels were changed from one class to another."""

    old: str
    new: str
    count: int


@dataclass(frozen=True)
class AppliedDecisions:
    """The corrected dataset in numbers, and how to scan it."""

    output: str
    audit: str
    summary: str
    examples: int
    decided: int
    undecided: int
    open: int  # suspects without a decision
    changed: int
    left_out: int
    decisions: dict[str, int]
    moves: list[LabelMove]
    earlier: int  # decisions that the run was scanned with, and which are applied, too
    kept_in: str | None  # the file in which later scans find the decisions
    waived: int  # kept rows with a waiver instead
    root: str | None
    notes: list[str]
    scan: list[str]  # options that `scan` needs

    def to_document(self) -> Document:
        """Return the JSON document."""
        moves = [{"from": move.old, "to": move.new, "count": move.count} for move in self.moves]
        return {**asdict(self), "moves": moves}


def apply(run: Path, settings: ApplySettings, *, session: Session) -> AppliedDecisions:
    """Write a corrected dataset, an audit log and a summary. If any decision cannot be applied, nothing is written."""
    report = read_report(run)
    if settings.moved.data is None and not is_own_run(
        report
    ):  # all of that dataset is copied, not only what was hashed
        raise InputError(
            f"{run}: you did not make this run here, so its dataset is not taken from it.", "Name it: --data PATH"
        )
    source = settings_of_run(report, settings.moved).source
    refuse_output_in_dataset(report, settings.output, settings.moved)
    finish_publishing(settings.output, sidecar_names(settings.output))
    _refuse_existing(settings)
    whole = read_whole(source)
    index = align_to_report(report, narrow(whole, source), allow_outside=source.allow_outside)
    _refuse_kind(whole, source, settings)
    outcomes, undecided = read_outcomes(report, settings.decisions, new_classes=settings.new_classes, root=index.root)
    if settings.accept_above is not None:
        outcomes |= accept_above(report, settings.accept_above, set(outcomes))
    known = decided_before(report, set(outcomes))
    place = _places(whole, index, outcomes | known)
    earlier = {row: outcome for row, outcome in known.items() if row in place}  # not of removed files
    if not outcomes and not earlier:
        _refuse_no_decisions(report, settings, undecided)
    if kind_of_vectors(report) is None:
        _refuse_changed_images(report, index, earlier | outcomes, session)
    waived = {row for row, outcome in outcomes.items() if settings.waive_kept and outcome.decision == "keep"}
    rows = np.array(sorted(earlier | outcomes), dtype=np.int64)
    hashes = dict(zip(rows.tolist(), report.take(rows, "sha256")["sha256"].to_pylist(), strict=True))
    changes = {
        place[row]: RowChange(outcome.label, None if row in waived else _mark(outcome, hashes[row]))
        for row, outcome in (earlier | outcomes).items()
    }
    left_out = sum(change.label is None for change in changes.values())
    if left_out == len(whole):
        raise InputError("Every row would be left out.", "Nothing was written.")
    moves = _moves(index, earlier | outcomes)
    applied = AppliedDecisions(
        output=str(settings.output),
        audit=str(sidecar_path(settings.output, "audit.csv")),
        summary=str(sidecar_path(settings.output, "summary.json")),
        kept_in=_place_of_decisions(settings, changes),
        waived=len(waived),
        earlier=len(earlier),
        examples=len(whole) - left_out,
        decided=len(outcomes),
        undecided=undecided,
        open=int((~np.isin(report.suspect_rows(0.0), list(outcomes))).sum()),
        changed=sum(move.count for move in moves),
        left_out=left_out,
        decisions=dict(sorted(Counter(outcome.decision for outcome in outcomes.values()).items())),
        moves=moves,
        root=None,
        notes=[],
        scan=[],
    )
    applied = _publish(report, whole, source, changes, earlier | outcomes, applied, settings)
    if waived:
        columns = ("row", "id", "path", "label", "sha256")
        shown = report.take(np.array(sorted(waived), dtype=np.int64), *columns).to_pylist()
        add_waivers(settings.waivers, [waiver_of(row, outcomes[row["row"]].reason) for row in shown])
    return applied


def _places(whole: Index, index: Index, decided: Iterable[int]) -> dict[int, int]:
    """Return decided row of the run → row of the whole dataset, for those that it still has."""
    rows = np.array(sorted(decided), dtype=np.int64)
    places = whole.column("ids").places(index.column("ids").take(rows))
    return {row: place for row, place in zip(rows.tolist(), places.tolist(), strict=True) if place >= 0}


def _mark(outcome: Outcome, sha256: str | None) -> str | None:
    """Return what the new dataset remembers of a decision; None if no person decided."""
    if outcome.label is None or outcome.decision not in PAGE_DECISIONS:
        return None
    return DecisionMark(outcome.decision, outcome.by, outcome.at, decision_key(sha256, outcome.label)).to_text()


def _place_of_decisions(settings: ApplySettings, changes: dict[int, RowChange]) -> str | None:
    """Return the file in which the decisions are kept: the table itself or, for a folder, one beside it."""
    if all(change.mark is None for change in changes.values()):
        return None
    return str(settings.output if settings.tree is None else sidecar_path(settings.output, "decisions.csv"))


def _refuse_no_decisions(report: Report, settings: ApplySettings, undecided: int) -> NoReturn:
    names = ", ".join(str(file) for file in settings.decisions)
    problem = f"{names}: {undecided:,} entries, none of them decided." if names else "There are no decisions."
    if settings.accept_above is not None:
        most = pc.max(report.suspects(0.0, "corruption_probability")["corruption_probability"]).as_py()
        problem += f" The highest probability of a suspect is {0.0 if most is None else most:.4f}."
    raise InputError(problem, "Decide something first, or lower --accept-above.")


def _refuse_existing(settings: ApplySettings) -> None:
    out = settings.output
    if not out.name:
        raise OutputError(f"{out}: is a folder.", "Choose a name for the corrected dataset with -o.")
    if settings.tree is not None and out.suffix.lower() in TABLE_SUFFIXES:
        raise UsageError(f"-o {out}: --tree writes a folder.", "Leave the extension out, or leave --tree out.")
    for file in (out, *(out.with_name(name) for name in sidecar_names(out))):
        if any(file.exists() and given.exists() and file.samefile(given) for given in settings.decisions):
            raise OutputError(f"{file}: is the file of decisions itself.", "Choose another name with -o.")
        if file.exists() and not settings.force:
            raise OutputError(f"{file}: exists already.", "Choose another name with -o, or pass --force.")
        if file.is_dir() and (file != out or settings.tree is None):
            raise OutputError(f"{file}: is a folder.", "Choose another name with -o.")


def _refuse_kind(whole: Index, source: SourceSettings, settings: ApplySettings) -> None:
    """Refuse, before any decision is read, an output format that does not fit the dataset."""
    if settings.tree is not None:
        if whole.kind != "folder":
            raise UsageError("--tree is for image folders.", "Leave it out: a table stays a table.")
        return
    if whole.kind == "folder" and not settings.output.suffix:
        raise UsageError(
            f"-o {settings.output}: not a table format, and an image folder needs --tree.",
            "Add --tree copy to write an image folder, or choose a name that ends in .csv.",
        )
    kind = table_kind(whole, source, settings.output)
    if whole.kind in REWRITERS and kind != whole.kind:
        raise UsageError(
            f"-o {settings.output}: the dataset is a {whole.kind} table, and stays one.",
            f"Choose a name that ends in {source.path.suffix}.",
        )


def _refuse_changed_images(
    report: Report,
    index: Index,
    outcomes: dict[int, Outcome],
    session: Session,
) -> None:
    """Refuse decisions about images that changed since the run."""
    rows = np.array(sorted(outcomes), dtype=np.int64)
    with Decoder(pixel_settings_of_run(report), session) as decoder:
        file_facts = decoder.inspect(index, rows=rows)
    before = Hashes(report.take(rows, "sha256")["sha256"])
    changed = [
        f"{index.ids[int(rows[j])]!r}: "
        f"{'changed since the run' if file_facts.sha256[j] is not None else file_facts.status[j]}"
        for j in np.flatnonzero(file_facts.hashes.differ(before)).tolist()
    ]
    if changed:
        raise StateError(
            "Images with a decision changed since the run:",
            "Nothing was written: scan again, and decide these again.",
            items=changed,
        )


def _publish(
    report: Report,
    whole: Index,
    source: SourceSettings,
    changes: dict[int, RowChange],
    outcomes: dict[int, Outcome],
    applied: AppliedDecisions,
    settings: ApplySettings,
) -> AppliedDecisions:
    """Write dataset, audit log and summary, and put them in place as one set."""
    out = settings.output
    if settings.tree is not None:
        refuse_existing_folder(out, force=settings.force)
    with stage(out) as folder:
        root, notes = write_dataset(whole, source, changes, settings, folder / out.name)
        options = [*scan_options(source, root), *vector_options(report)]
        if settings.tree == "link":
            options.append("--allow-outside")  # its links lead to the images of the old folder
        if settings.tree is not None and applied.kept_in is not None:
            options += ["--decisions", applied.kept_in]
            with (folder / Path(applied.kept_in).name).open("xb") as file:
                kept = pa.Table.from_pylist(list(kept_decisions(whole, report, changes)), schema=DECISION_COLUMNS)
                write_csv_rows(file, [kept], names=kept.column_names, guard=True)
        applied = replace(applied, root=None if root is None else str(root), notes=notes, scan=options)
        log = audit_table(report, outcomes)
        with (folder / Path(applied.audit).name).open("xb") as file:
            write_csv_rows(file, [log], names=log.column_names, guard=True)
        write_json(folder / Path(applied.summary).name, applied.to_document())
        publish(folder, out, remove=sidecar_names(out))  # those that are not written anew
    return applied


def _moves(index: Index, outcomes: dict[int, Outcome]) -> list[LabelMove]:
    """Count the label changes per pair of old and new label, most frequent first."""
    pairs = Counter(
        (index.labels[row], outcome.label)
        for row, outcome in outcomes.items()
        if outcome.label is not None and outcome.label != index.labels[row]
    )
    return [LabelMove(old, new, count) for (old, new), count in pairs.most_common()]


def sidecar_path(out: Path, ending: str) -> Path:
    """Return the path of a file beside an output of `apply`: `new.csv` → `new.audit.csv`."""
    return out.with_name(f"{out.stem if out.suffix else out.name}.{ending}")


def sidecar_names(out: Path) -> list[str]:
    """Return the names of all files that `apply` may write beside its output."""
    endings = ("audit.csv", "summary.json", "decisions.csv")
    return [sidecar_path(out, ending).name for ending in endings] if out.name else []
