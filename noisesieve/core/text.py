"""Text: reversible escapes for file names, text that is safe to print, and cells for CSV and XML."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Container, Sequence

from noisesieve.core.errors import InputError

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
QUOTED = r'[",;\t\r\n]'  # in a CSV cell: it is quoted
FORMULA = r"^'*[=+\-@\t\r\n]"  # text that a spreadsheet would run, with or without our own quotes
_QUOTED, _FORMULA = re.compile(QUOTED), re.compile(FORMULA)
_CI_COMMAND = re.compile(r"::(?=[A-Za-z])|##(?=\w*\[)")  # a line of a table may break before it
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)  # on Windows
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_NAME = 120  # bytes; file systems allow 255
_DIGITS = re.compile(r"(\d{1,18})")


def escape_name(name: str) -> str:
    r"""Return a file name as valid text without control characters: `\xff`, `\x0a`, `\\`. Reversible."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape_character(character) for character in name)


def _escape_character(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode returns it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return character


def unescape_name(text: str) -> str:
    """Return the file name that `escape_name` turned into this text."""

    def restore(match: re.Match[str]) -> str:
        code = match.group(1)
        if code == "\\":
            return "\\"
        value = int(code[1:], 16)
        return chr(value if value < 0x80 else 0xDC00 + value)

    return _ESCAPE.sub(restore, text)


def natural_key(text: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key that puts 2 before 10 and is defined for every string."""
    parts = _DIGITS.split(text)
    return tuple((1, 0, p) if i % 2 == 0 else (0, int(p), p) for i, p in enumerate(parts) if p), text


def printable(text: str) -> str:
    """Return text for a terminal, with control and format characters (ESC, bidi overrides) escaped.

    In a CI log some text is a command, as `::set-output` of GitHub and `##vso[…]` of Azure: it is broken up.
    """
    text = _CI_COMMAND.sub(lambda match: " ".join(match[0]), text)
    if text.isprintable():
        return text
    return "".join(c if _is_safe(c) else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def printable_json(document: object) -> str:
    """Return a JSON document on one line in which no text is a command of a CI system."""
    return re.sub(r"##(?=\w*\[)", r"#\\u0023", json.dumps(document))


def _is_safe(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn")


def leads_out(path: str) -> bool:
    """Return True if a table's path, literal or unescaped, leads out of the dataset's folder."""
    return _leads_out(path) or ("\\" in path and _leads_out(unescape_name(path)))


def _leads_out(path: str) -> bool:
    inside = os.path.normpath(path) if ".." in path else path
    drive = os.path.splitdrive(path)[0]  # empty except on Windows
    return os.path.isabs(path) or bool(drive) or inside == ".." or inside.startswith(".." + os.sep)


def file_of(root: str, path: str) -> str:
    """Return the file for a table's path: the literal path if it exists, else the unescaped one."""
    literal = os.path.join(root, path)
    if "\\" in path and not os.path.lexists(literal):
        return os.path.join(root, unescape_name(path))
    return literal


def csv_line(cells: Sequence[object], separator: str = ",") -> str:
    """Return one CSV row without its line ending. Cells with any kind of separator or line ending are quoted.

    Python's csv writer quotes only cells that contain its own; other readers, such as a spreadsheet in another
    language, also break at the others, and what follows could be a formula.
    """
    return separator.join(_csv_cell(cell, alone=len(cells) == 1) for cell in cells)


def _csv_cell(cell: object, *, alone: bool) -> str:
    text = "" if cell is None else str(cell)
    if not _QUOTED.search(text) and not (alone and not text):
        return text
    return '"' + text.replace('"', '""') + '"'


def guard_cell(text: str) -> str:
    """Return text for a CSV cell. Text that a spreadsheet would run as a formula gets a leading quote. Reversible."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguard_cell(text: str) -> str:
    """Undo `guard_cell`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def without_xml_control(text: str) -> str:
    """Remove the characters that XML 1.0 does not allow."""
    return _NOT_XML.sub("", text)


def folder_name(text: str) -> str:
    """Return a label as a folder name: without separators, not hidden, not too long."""
    name = re.sub(r'[/\\\0-\x1f\x7f:*?"<>|]', "_", text).strip() or "_"
    if name[0] == "." or _RESERVED.match(name):
        name = "_" + name.removeprefix(".")
    if name.endswith("."):  # Windows drops it
        name = name[:-1] + "_"
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        mark = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        stem, ending = os.path.splitext(name)
        ending = ending if len(ending) <= 8 else ""
        kept = stem.encode("utf-8", "surrogateescape")[: _LONGEST_NAME - 20].decode("utf-8", "ignore")
        name = f"{kept}-{mark}{ending}"
    return name


def carried_name(name: str, taken: Container[str]) -> str:
    """Return our name for a column of the user's table: with the prefix `user_` if the name is taken."""
    while name in taken:
        name = f"user_{name}"
    return name


def refuse_half_characters(value: object, location: str) -> None:
    """Refuse JSON that has half of a character in it (a lone surrogate): it cannot be written or printed."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{location}: invalid Unicode (a lone surrogate).", "Repair the text.") from error


def line_that_is_not_utf8(blob: bytes) -> int:
    """Return the number of the first line that is not UTF-8, from 1."""
    try:
        blob.decode()
    except UnicodeDecodeError as error:
        return blob.count(b"\n", 0, error.start) + 1
    return 1


def duration(seconds: float) -> str:
    """Return seconds as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
