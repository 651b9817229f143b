"""File names as text that every format can carry, and back again; labels and names that are safe to print."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import unicodedata
from collections.abc import Sequence

IMAGE_EXTENSIONS = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".mpo",
        ".png",
        ".apng",
        ".gif",
        ".bmp",
        ".dib",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".avif",
        ".jp2",
        ".j2k",
    ]
)
_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2})")
_RUNS = re.compile(r"'*[=+\-@\t\r\n]")  # what a spreadsheet takes for a formula, quotes of ours before it or not
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_NAME = 120  # characters; file systems allow 255 bytes
_DIGITS = re.compile(r"(\d{1,18})")


def escape_name(name: str) -> str:
    r"""A name from the file system as valid text without control characters: `\xff`, `\x0a`, `\\`. Reversible."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape_character(character) for character in name)


def _escape_character(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode hands it over
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return character


def unescape_name(text: str) -> str:
    """The file system's name that `escape_name` turned into this text."""

    def restore(match: re.Match[str]) -> str:
        code = match.group(1)
        if code == "\\":
            return "\\"
        value = int(code[1:], 16)
        return chr(value if value < 0x80 else 0xDC00 + value)

    return _ESCAPE.sub(restore, text)


def natural_key(text: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sort key that puts 2 before 10 and is stable for every string."""
    parts = _DIGITS.split(text)
    return tuple((1, 0, p) if i % 2 == 0 else (0, int(p), p) for i, p in enumerate(parts) if p), text


def printable(text: str) -> str:
    """Text for a terminal: control and format characters (ESC, bidi overrides) shown as escapes, never obeyed."""
    if text.isprintable():
        return text
    return "".join(c if _harmless(c) else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn")


def leads_out(path: str) -> bool:
    """Does a table's path lead out of the dataset's folder, taken literally or as an escaped name?"""
    return _leads_out(path) or ("\\" in path and _leads_out(unescape_name(path)))


def _leads_out(path: str) -> bool:
    inside = os.path.normpath(path) if ".." in path else path
    drive = os.path.splitdrive(path)[0]  # empty where the system has no drives
    return os.path.isabs(path) or bool(drive) or inside == ".." or inside.startswith(".." + os.sep)


def file_of(root: str, path: str) -> str:
    """The file that a table's path means: taken literally, else as an escaped name."""
    literal = os.path.join(root, path)
    if "\\" in path and not os.path.lexists(literal):
        return os.path.join(root, unescape_name(path))
    return literal


def csv_line(cells: Sequence[object], separator: str = ",") -> str:
    """One row of a CSV without its line's end; a cell that holds any kind of line end is quoted.

    Left to itself, Python's writer quotes only the line end that it writes, and readers stop at others.
    """
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n")


def guard_cell(text: str) -> str:
    """Text for a cell of a CSV: what a spreadsheet would run gets a quote before it. Reversible."""
    return f"'{text}" if _RUNS.match(text) else text


def unguard_cell(text: str) -> str:
    """The text that `guard_cell` was given."""
    return text[1:] if text.startswith("'") and _RUNS.match(text) else text


def without_xml_control(text: str) -> str:
    """Text without the characters that XML 1.0 cannot carry."""
    return _NOT_XML.sub("", text)


def folder_name(text: str) -> str:
    """A label as the name of one folder: no separators, not hidden, not too long."""
    name = re.sub(r'[/\\\0-\x1f\x7f:*?"<>|]', "_", text).strip() or "_"
    if name[0] == ".":
        name = "_" + name[1:]
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        mark = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        stem, ending = os.path.splitext(name)
        ending = ending if len(ending) <= 8 else ""
        kept = stem.encode("utf-8", "surrogateescape")[: _LONGEST_NAME - 20].decode("utf-8", "ignore")
        name = f"{kept}-{mark}{ending}"
    return name
