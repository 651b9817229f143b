"""Parquet: columns keep their types. An image may be embedded as bytes or as Hugging Face's struct."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisesieve.core.errors import InputError
from noisesieve.core.parquet_file import TooLarge, read_parquet
from noisesieve.core.records import Index
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import Table, to_index


def read(settings: SourceSettings) -> Index:
    """Index a Parquet file; the images themselves stay on disk until they are decoded."""
    file = settings.path
    try:
        schema = pq.read_schema(file)
        embedded = _embedded(schema, settings)
        binary = [field.name for field in schema if _holds_bytes(field.type) and field.name != embedded]
        columns, _ = read_parquet(file, [name for name in schema.names if name != embedded and name not in binary])
    except TooLarge as error:
        raise InputError(f"{file}: {error}.", "Leave the column out, or write shorter cells.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not a readable Parquet file ({error}).", "Write it again.") from error
    _refuse_unreadable_cells(columns, file)
    if settings.label_column in binary:
        raise InputError(
            f"{file}: column {settings.label_column!r} contains bytes, not labels.",
            "Choose another with --label-column.",
        )
    columns = _decode_class_labels(columns, hugging_face_classes(schema)).replace_schema_metadata(None)
    return to_index(Table(columns, None, embedded, left_out=binary), settings, "parquet")


def _refuse_unreadable_cells(columns: pa.Table, file: Path) -> None:
    """Refuse text that is not UTF-8, and times that Python cannot express: later commands would fail on them."""
    for name, column in zip(columns.column_names, columns.columns, strict=True):
        try:
            column.validate(full=True)
            if pa.types.is_temporal(column.type):
                pc.min_max(column).as_py()
        except Exception as error:  # an unknown time zone can raise anything
            raise InputError(f"{file}: column {name!r} cannot be read ({error}).", "Leave it out.") from error


def _holds_bytes(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    if any(test(kind) for test in kinds):
        return True
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _embedded(schema: pa.Schema, settings: SourceSettings) -> str | None:
    wanted = settings.image_column or "image"
    if wanted in schema.names and _holds_bytes(schema.field(wanted).type):
        return wanted
    if settings.image_column is not None:
        raise InputError(
            f"{settings.path}: no column {settings.image_column!r} with image bytes.", "Check --image-column."
        )
    return None


def _decode_class_labels(table: pa.Table, classes: dict[str, list[str]]) -> pa.Table:
    """Replace Hugging Face's class numbers by the class names in the file's metadata."""
    for i, name in enumerate(table.column_names):
        if (names := classes.get(name)) is not None:
            try:
                named = pa.array(names, pa.string()).take(table[name].combine_chunks())
            except pa.ArrowException:
                continue  # numbers without a name (-1 in test sets): they stay numbers
            table = table.set_column(i, name, named)
    return table


def hugging_face_classes(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the class names of every column of class numbers, from Hugging Face's metadata, which is parsed once."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        described = {name: feature["names"] for name, feature in features.items() if feature["_type"] == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        field.name: names
        for field in schema
        if pa.types.is_integer(field.type)
        and isinstance(names := described.get(field.name), list)
        and all(isinstance(name, str) for name in names)
    }
