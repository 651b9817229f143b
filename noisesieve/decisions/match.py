"""Decisions of earlier runs, found again in a dataset: by content and given label, else by id or path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.columns import HASH, Hashes, Texts
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.core.records import DECIDED_COLUMN, FileFacts, Index
from noisesieve.core.text import unguard_cell
from noisesieve.decisions.marks import DecisionMark, decision_key
from noisesieve.decisions.read import Decision, read_decisions
from noisesieve.report.build_table import Decided, DecidedRow

PEOPLE = 3  # reviewers that are named


def find_decisions(
    files: Sequence[Path], index: Index, file_facts: FileFacts, session: Session, *, classes: Sequence[str] = ()
) -> Decided:
    """Return what was decided about the rows of a dataset: in its own table by `apply`, and in files of decisions.

    A decision with a SHA-256 and a given label holds for every row with this content and this label, wherever the file
    is now. Other decisions hold for the row with their id or path. Those on other images are counted and passed over.
    """
    entries = [entry for file in files for entry in read_decisions(file).decisions]
    decided = dict(_in_table(index, file_facts, session))
    if not entries and not decided:
        return {}
    rows, known = _Rows(index, file_facts, entries), {*index.column("labels").distinct(), *classes}
    before, unknown, conflicts = len(decided), 0, []
    for entry in entries:
        if entry.untouched or (entry.exported and entry.label == entry.given):
            continue  # our own export, not edited
        matched = rows.of(entry)
        unknown += not matched
        if (label := _label(entry, known)) is not None and label not in known and matched:
            raise InputError(f"{entry.location}: {label!r} is not a class of the dataset.", "Use `apply` instead.")
        for row in matched:
            earlier = decided.setdefault(row, entry)
            if _label(earlier, known) != label:
                conflicts.append(f"{index.ids[row]!r}: {_whose(earlier)}, and {_whose(entry)}")
    if conflicts:
        raise InputError(f"{len(conflicts):,} rows were decided twice, differently:", "Keep one each.", items=conflicts)
    if unknown:
        session.warn(f"{unknown:,} decisions are about other images or other labels: passed over.")
    if decided:
        in_table = f", {before:,} of them in the table" if before else ""
        session.note(
            f"{len(decided):,} rows are decided{_people(decided.values())}{in_table}: they are learnt as decided, and "
            "not asked about again."
        )
    return {
        row: DecidedRow(label, _word(entry, label, index.labels[row]), entry.by, entry.at, entry.applied)
        for row, entry in sorted(decided.items())
        for label in [_label(entry, known)]
    }


def _in_table(index: Index, file_facts: FileFacts, session: Session) -> Iterator[tuple[int, Decision]]:
    """Yield the rows that `apply` has marked as decided, as long as neither image nor label has changed since."""
    carried = index.carried
    if carried is None or DECIDED_COLUMN not in carried.column_names:
        return
    changed = 0
    try:
        marks = Texts(carried[DECIDED_COLUMN].cast(pa.string()))
    except pa.ArrowException as error:
        raise InputError(f"The column {DECIDED_COLUMN!r} is not text.", "Rename it: `apply` writes it.") from error
    for row in np.flatnonzero(~marks.missing & (marks.codes([""]) < 0)).tolist():
        mark = DecisionMark.from_text(marks[row])
        if mark is None or mark.key != decision_key(file_facts.sha256[row], index.labels[row]):
            changed += 1
            continue
        name = (("id", index.ids[row]),)
        word = mark.decision
        yield row, Decision(name, index.labels[row], "the table", mark.by, mark.at, "apply", word=word, applied=True)
    if changed:
        which = "row has" if changed == 1 else "rows have"
        session.warn(f"{changed:,} decided {which} another image or another label now: that decision is void.")


def _people(entries: Iterable[Decision]) -> str:
    """Return the reviewers, those with most decisions first."""
    counts = Counter(entry.by for entry in entries if entry.by)
    names = ", ".join(name for name, _ in counts.most_common(PEOPLE))
    more = f" and {len(counts) - PEOPLE:,} more" if len(counts) > PEOPLE else ""
    return f" by {names}{more}" if counts else ""


class _Rows:
    """The rows of a dataset that decisions may mean: by content and label, by id, and by path."""

    def __init__(self, index: Index, file_facts: FileFacts, entries: Sequence[Decision]) -> None:
        self.labels = index.labels
        self.by_content: dict[tuple[str | None, str], list[int]] = {}
        self.by_name: dict[str, list[int]] = {}
        names = {name for entry in entries for _, name in entry.names}
        names |= {unguard_cell(name) for name in names}
        hashes = [entry.sha256 for entry in entries if entry.sha256 is not None and HASH.fullmatch(entry.sha256)]
        named = index.column("ids").is_in(names) | index.column("paths").is_in(names)
        for row in np.flatnonzero(file_facts.hashes.is_in(Hashes(hashes)) | named).tolist():
            name, path = index.ids[row], index.paths[row]
            self.by_content.setdefault((file_facts.sha256[row], index.labels[row]), []).append(row)
            for text in {name, path or name}:
                self.by_name.setdefault(text, []).append(row)

    def of(self, entry: Decision) -> list[int]:
        given = {entry.given, unguard_cell(entry.given)} if entry.given is not None else set()
        if entry.sha256 is not None and given:
            return [row for label in given for row in self.by_content.get((entry.sha256, str(label)), [])]
        for _, name in entry.names:
            rows = self.by_name.get(name) or self.by_name.get(unguard_cell(name)) or []
            if rows:
                return [row for row in rows if not given or self.labels[row] in given]
        return []


def _word(entry: Decision, label: str | None, given: str) -> str:
    """Return the decision in one word; a plain table of labels has none."""
    if entry.word:
        return entry.word
    return "unusable" if label is None else "keep" if label == given else "relabel"


def _label(entry: Decision, classes: set[str]) -> str | None:
    if entry.label is None or entry.label in classes:
        return entry.label
    return unguard_cell(entry.label)


def _whose(entry: Decision) -> str:
    label = "unusable" if entry.label is None else repr(entry.label)
    return f"{label}{f' by {entry.by}' if entry.by else ''} in {entry.location}"
