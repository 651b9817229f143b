"""Decision files: the review page's CSV, a plain table of paths and labels, a Label Studio export, CVAT XML."""

from __future__ import annotations

import csv
import io
import json
import xml.parsers.expat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from noisesieve.errors import InputError

UNUSABLE = "unusable"
PAGE_DECISIONS = ("accept", "keep", "relabel", UNUSABLE)
ALIASES = {"path": "path", "label": "label", "id": "id", "filename": "path", "file_name": "path", "file": "path"}
LONGEST = 2**28  # bytes of a decision file


@dataclass(frozen=True)
class Decision:
    """What somebody said of one picture. `label` None: it is unusable."""

    names: tuple[tuple[str, str], ...]  # ("id" or "path", text): all of them mean the row
    label: str | None
    place: str  # file and line, for whoever has to look it up
    by: str = ""
    at: str = ""
    source: str = "csv"
    sha256: str | None = None  # what the decider saw, where the file says so
    given: str | None = None
    word: str = ""  # accept, keep, relabel or unusable, where the file says so
    guarded: bool = False  # cells that a spreadsheet would run have a quote before them
    untouched: bool = False  # noisesieve's own suggestion, as it left
    silent: bool = False  # a row of our own export: the given label again is no decision


@dataclass(frozen=True)
class Said:
    """A decision file as read."""

    decisions: list[Decision] = field(default_factory=list)
    undecided: int = 0  # rows that nobody has decided


def read(file: Path) -> Said:
    """Every decision of a file, in its order."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"{file}: no decisions that noisesieve reads.", f"Give a file that ends in {_endings()}.")
    try:
        blob = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check the path.") from error
    if not blob.strip():
        raise InputError(f"{file}: is empty.", "Decide something first.")
    if len(blob) > LONGEST:
        raise InputError(f"{file}: {len(blob):,} bytes, more than decisions take.", "Is it the right file?")
    said = reader(file, blob)
    if not said.decisions and not said.undecided:
        raise InputError(f"{file}: no decisions in it.", "Decide something first.")
    return said


def _endings() -> str:
    return ", ".join(READERS)


# CSV: the page's, somebody's own, or Label Studio's


def _read_csv(file: Path, blob: bytes) -> Said:
    try:
        text = blob.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 ({error.reason}).", "Save it as UTF-8.") from error
    header = text.partition("\n")[0]
    separator = next((mark for mark in ("\t", ",", ";") if mark in header), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    decisions: list[Decision] = []
    try:
        names = [ALIASES.get(name.strip().lower(), name.strip()) for name in next(reader, [])]
        keys: list[str] = [name for name in ("noisesieve_id", "id", "path") if name in names]
        if not keys or "label" not in names:
            raise InputError(
                f"{file}: no columns path (or id) and label. It has: {', '.join(map(repr, names)) or 'none'}.",
                "Name them so in the first line.",
            )
        if "noisesieve_id" in keys:
            keys = ["noisesieve_id"]  # Label Studio's own id is another thing
        begin, undecided = reader.line_num + 1, 0
        for cells in reader:
            place, begin = f"{file}:{begin}", reader.line_num + 1
            if not cells:
                continue
            if len(cells) != len(names):
                raise InputError(
                    f"{place}: {len(cells)} cells where the header has {len(names)}.", "Quote commas inside cells."
                )
            row = dict(zip(names, cells, strict=True))
            decision = _from_row(row, keys, place)
            if decision is None:
                undecided += 1
            else:
                decisions.append(decision)
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: {error}.", "Check the quotes in that line.") from error
    return Said(decisions, undecided)


def _from_row(row: dict[str, str], keys: list[str], place: str) -> Decision | None:
    word = row.get("decision", "")
    if word and word not in PAGE_DECISIONS:
        raise InputError(f"{place}: the decision {word!r} is unknown.", f"Write {', '.join(PAGE_DECISIONS)}.")
    if word != UNUSABLE and not row["label"]:
        if word:
            raise InputError(f"{place}: the decision {word!r} has no label.", "Fill it in.")
        return None
    return Decision(
        names=tuple(("path" if key == "path" else "id", row[key]) for key in keys if row[key]),
        label=None if word == UNUSABLE else row["label"],
        place=place,
        by=row.get("reviewer", "") or row.get("annotator", ""),
        at=row.get("decided_at", "") or row.get("updated_at", ""),
        source="review page" if word else "label-studio" if keys == ["noisesieve_id"] else "csv",
        sha256=row.get("sha256") or None,
        given=row.get("given") or row.get("given_label") or None,
        word=word,
        silent="verdict" in row and "suggested_label" in row,
        guarded="run" in row,  # the page's own file
    )


# Label Studio: JSON and JSON_MIN


def _read_label_studio(file: Path, blob: bytes) -> Said:
    try:
        tasks = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error}).", "Export it again as JSON.") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise InputError(f"{file}: not a list of Label Studio tasks.", "Export the project as JSON or JSON-MIN.")
    said = Said([], 0)
    undecided = 0
    for i, task in enumerate(tasks):
        found = list(_task_decisions(task, f"{file}, task {task.get('id', i)}"))
        said.decisions.extend(found)
        undecided += not found
    return Said(said.decisions, undecided)


def _task_decisions(task: dict[str, Any], place: str) -> list[Decision]:
    data: Any = task.get("data", task)
    if not isinstance(data, dict):
        raise InputError(f"{place}: no data in it.", "Export the project as JSON or JSON-MIN.")
    names = _task_names(data)
    if not names:
        raise InputError(f"{place}: neither noisesieve_id nor image.", "Is it an export of noisesieve's tasks?")
    sha256, given = _word(data.get("sha256")), _word(data.get("given_label"))
    if "data" not in task:  # JSON_MIN: one flat object, the choice under the control's name
        label = task.get("label")
        if label is None:
            return []
        who, when = _word(task.get("annotator")) or "", _word(task.get("updated_at")) or ""
        return [Decision(names, _choice(label, place), place, who, when, "label-studio", sha256, given)]
    found = []
    for annotation in _list(task.get("annotations"), place):
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        marks = _list(annotation.get("result"), place)
        results = [mark for mark in marks if isinstance(mark, dict) and mark.get("type") == "choices"]
        for result in results:
            value = result.get("value")
            label = _choice(value.get("choices") if isinstance(value, dict) else None, place)
            when = _word(annotation.get("updated_at")) or ""
            found.append(Decision(names, label, place, _annotator(annotation), when, "label-studio", sha256, given))
    return found


def _list(value: Any, place: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise InputError(f"{place}: {value!r} where a list should be.", "Export the project again.")
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


def _choice(value: Any, place: str) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise InputError(f"{place}: not one choice but {value!r}.", "One picture has one class.")
    return value


def _word(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)


# CVAT for images 1.1


def _read_cvat(file: Path, blob: bytes) -> Said:
    parser = xml.parsers.expat.ParserCreate()
    decisions: list[Decision] = []
    state: dict[str, Any] = {"image": None, "tags": 0, "undecided": 0, "root": None}

    def start(tag: str, values: dict[str, str]) -> None:
        state["root"] = state["root"] or tag
        if tag == "image":
            state["image"], state["tags"] = values.get("name", ""), 0
        elif tag == "tag" and state["image"]:
            state["tags"] += 1
            place = f"{file}:{parser.CurrentLineNumber}"
            untouched = values.get("source") == "auto"
            label = values.get("label", "")
            decisions.append(Decision((("path", state["image"]),), label, place, source="cvat", untouched=untouched))

    def end(tag: str) -> None:
        if tag == "image":
            state["undecided"] += not state["tags"]
            mine = decisions[len(decisions) - state["tags"] :] if state["tags"] else []
            if any(not said.untouched for said in mine):  # somebody's tag beside ours: theirs counts
                decisions[len(decisions) - state["tags"] :] = [said for said in mine if not said.untouched]
            state["image"] = None

    def refuse(*_: Any) -> None:
        raise InputError(f"{file}: declares a document type, as no CVAT export does.", "Export it again from CVAT.")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = refuse  # entities could grow without end
    try:
        parser.Parse(blob, True)
    except (xml.parsers.expat.ExpatError, LookupError, ValueError) as error:
        raise InputError(f"{file}: not XML ({error}).", "Export it again from CVAT.") from error
    if state["root"] != "annotations":
        raise InputError(f"{file}: not CVAT for images 1.1.", "Choose that format when you export from CVAT.")
    return Said(decisions, state["undecided"])


READERS: dict[str, Callable[[Path, bytes], Said]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_label_studio,
    ".xml": _read_cvat,
}
