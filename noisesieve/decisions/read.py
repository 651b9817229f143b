"""Decision files: the review page's CSV, a plain table of paths and labels, a Label Studio export, CVAT XML."""

from __future__ import annotations

import json
import xml.parsers.expat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from noisesieve.core.csv_file import csv_separator, read_csv_file
from noisesieve.core.errors import InputError
from noisesieve.core.text import line_that_is_not_utf8, refuse_half_characters
from noisesieve.core.untrusted import read_regular
from noisesieve.report.schema import UNUSABLE_CHOICE

UNUSABLE = "unusable"
PAGE_DECISIONS = ("accept", "keep", "relabel", UNUSABLE)
ALIASES = {"path": "path", "label": "label", "id": "id", "filename": "path", "file_name": "path", "file": "path"}
LONGEST = 2**28  # bytes of a decision file


@dataclass(frozen=True)
class Decision:
    """A person's decision about one image. `label` None: it is unusable."""

    names: tuple[tuple[str, str], ...]  # ("id" or "path", text): each identifies the row
    label: str | None
    location: str  # file and line
    by: str = ""
    at: str = ""
    source: str = "csv"
    sha256: str | None = None  # of the image that was decided on, if the file has it
    given: str | None = None
    word: str = ""  # accept, keep, relabel or unusable, if the file has it
    guarded: bool = False  # formulas in cells have a leading quote
    untouched: bool = False  # noisesieve's own suggestion, not edited
    exported: bool = False  # a row of our own export: an unchanged label is not a decision
    sampled: bool = False  # a row of the random sample of `review --probe`
    applied: bool = False  # the label is in the dataset since `apply`
    how: str = ""  # "sheet 12", if it was decided with others


@dataclass(frozen=True)
class DecisionFile:
    """The content of a decision file."""

    decisions: list[Decision] = field(default_factory=list)
    undecided: int = 0  # rows without a decision


def read_decisions(file: Path) -> DecisionFile:
    """Read every decision of a file, in its order."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"{file}: not a format of decisions.", f"Give a file that ends in {', '.join(READERS)}.")
    try:
        blob = read_regular(file, most=LONGEST)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check the path.") from error
    if not blob.strip():
        raise InputError(f"{file}: is empty.", "Decide something first.")
    content = reader(file, blob)
    if not content.decisions and not content.undecided:
        raise InputError(f"{file}: contains no decisions.", "Decide something first.")
    return content


# CSV: from the review page, from the user, or from Label Studio


def _read_csv(file: Path, blob: bytes) -> DecisionFile:
    table = read_csv_file(file, csv_separator(file))
    names = [ALIASES.get(name.strip().lower(), name.strip()) for name in table.header]
    replace(table, header=names).refuse_repeated_columns(file)
    keys: list[str] = [name for name in ("noisesieve_id", "id", "path") if name in names]
    if not keys or "label" not in names:
        raise InputError(
            f"{file}: no columns path (or id) and label. It has: {', '.join(map(repr, names)) or 'none'}.",
            "Add them to the first line.",
        )
    if "noisesieve_id" in keys:
        keys = ["noisesieve_id"]  # the column id is then Label Studio's own
    rows = zip(table.lines, table.rows, strict=True)
    entries = [_from_row(dict(zip(names, cells, strict=True)), keys, f"{file}:{line}") for line, cells in rows]
    decisions = [entry for entry in entries if entry is not None]
    return DecisionFile(decisions, undecided=len(entries) - len(decisions))


def _from_row(row: dict[str, str], keys: list[str], location: str) -> Decision | None:
    word = row.get("decision", "")
    if word and word not in PAGE_DECISIONS:
        raise InputError(f"{location}: the decision {word!r} is unknown.", f"Write {', '.join(PAGE_DECISIONS)}.")
    if word != UNUSABLE and not row["label"]:
        if word:
            raise InputError(f"{location}: the decision {word!r} has no label.", "Fill it in.")
        return None
    return Decision(
        names=tuple(("path" if key == "path" else "id", row[key]) for key in keys if row[key]),
        label=None if word == UNUSABLE else row["label"],
        location=location,
        by=row.get("reviewer", "") or row.get("annotator", ""),
        at=row.get("decided_at", "") or row.get("updated_at", ""),
        source="review page" if word else "label-studio" if keys == ["noisesieve_id"] else "csv",
        sha256=row.get("sha256") or None,
        given=row.get("given") or row.get("given_label") or None,
        word=word,
        exported="verdict" in row and "suggested_label" in row,
        sampled=row.get("sample", "") == "yes",
        how=row.get("how", ""),
        applied=row.get("applied", "") == "yes",
        guarded="run" in row,  # a file of the review page
    )


# Label Studio: JSON and JSON_MIN


def _read_label_studio(file: Path, blob: bytes) -> DecisionFile:
    try:
        tasks = json.loads(blob.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = line_that_is_not_utf8(blob)
        raise InputError(f"{file}:{line}: not UTF-8 ({error.reason}).", "Export it again as JSON.") from error
    except RecursionError as error:
        raise InputError(f"{file}: nested too deeply for tasks.", "Export it again as JSON.") from error
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error}).", "Export it again as JSON.") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise InputError(f"{file}: not a list of Label Studio tasks.", "Export the project as JSON or JSON-MIN.")
    decisions: list[Decision] = []
    undecided = 0
    for i, task in enumerate(tasks):
        refuse_half_characters(task, f"{file}, task {i}")
        task_decisions = _task_decisions(task, f"{file}, task {task.get('id', i)}")
        decisions.extend(task_decisions)
        undecided += not task_decisions
    return DecisionFile(decisions, undecided)


def _task_decisions(task: dict[str, Any], location: str) -> list[Decision]:
    data: Any = task.get("data", task)
    if not isinstance(data, dict):
        raise InputError(f"{location}: has no data.", "Export the project as JSON or JSON-MIN.")
    names = _task_names(data)
    if not names:
        raise InputError(f"{location}: neither noisesieve_id nor image.", "Is it an export of noisesieve's tasks?")
    sha256, given = _word(data.get("sha256")), _word(data.get("given_label"))
    if "data" not in task:  # JSON_MIN: one flat object, the choice under the control's name
        label = task.get("label")
        if label is None:
            return []
        who, when = _word(task.get("annotator")) or "", _word(task.get("updated_at")) or ""
        return [Decision(names, _choice(label, location), location, who, when, "label-studio", sha256, given)]
    read = []
    for annotation in _list(task.get("annotations"), location):
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        marks = _list(annotation.get("result"), location)
        results = [mark for mark in marks if isinstance(mark, dict) and mark.get("type") == "choices"]
        for result in results:
            value = result.get("value")
            label = _choice(value.get("choices") if isinstance(value, dict) else None, location)
            when = _word(annotation.get("updated_at")) or ""
            read.append(Decision(names, label, location, _annotator(annotation), when, "label-studio", sha256, given))
    return read


def _list(value: Any, location: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise InputError(f"{location}: {value!r} where a list should be.", "Export the project again.")
    return value or []


def _task_names(data: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    if isinstance(own := data.get("noisesieve_id"), str):
        return (("id", own),)
    image = data.get("image")
    if not isinstance(image, str):
        return ()
    return (("path", unquote(image.partition("?d=")[2] or image)),)


def _annotator(annotation: dict[str, Any]) -> str:
    who = annotation.get("completed_by")
    return str(who.get("email") or who.get("id") or "") if isinstance(who, dict) else _word(who) or ""


def _choice(value: Any, location: str) -> str | None:
    """Return the chosen class; None: the image is unusable."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise InputError(f"{location}: not one choice but {value!r}.", "An image has one class.")
    return None if value == UNUSABLE_CHOICE else value


def _word(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)


# CVAT for images 1.1


@dataclass
class _CvatState:
    """Where the parser is."""

    root: str | None = None
    image: str | None = None
    tags: int = 0  # of this image
    undecided: int = 0  # images without a tag


def _read_cvat(file: Path, blob: bytes) -> DecisionFile:
    parser = xml.parsers.expat.ParserCreate()
    decisions: list[Decision] = []
    state = _CvatState()

    def start(tag: str, values: dict[str, str]) -> None:
        state.root = state.root or tag
        if tag == "image":
            state.image, state.tags = values.get("name", ""), 0
        elif tag == "tag" and state.image:
            state.tags += 1
            location = f"{file}:{parser.CurrentLineNumber}"
            untouched = values.get("source") == "auto"
            label = values.get("label", "")
            decisions.append(Decision((("path", state.image),), label, location, source="cvat", untouched=untouched))

    def end(tag: str) -> None:
        if tag == "image":
            state.undecided += not state.tags
            mine = decisions[len(decisions) - state.tags :] if state.tags else []
            if any(not entry.untouched for entry in mine):  # a person's tag beside ours: only theirs counts
                decisions[len(decisions) - state.tags :] = [entry for entry in mine if not entry.untouched]
            state.image = None

    def refuse(*_: Any) -> None:
        raise InputError(f"{file}: has a document type, which CVAT does not write.", "Export it again from CVAT.")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = refuse  # entities could expand without limit
    try:
        parser.Parse(blob, True)
    except (xml.parsers.expat.ExpatError, LookupError, ValueError) as error:
        raise InputError(f"{file}: not XML ({error}).", "Export it again from CVAT.") from error
    if state.root != "annotations":
        raise InputError(f"{file}: not CVAT for images 1.1.", "Choose that format when you export from CVAT.")
    return DecisionFile(decisions, state.undecided)


READERS: dict[str, Callable[[Path, bytes], DecisionFile]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_label_studio,
    ".xml": _read_cvat,
}
