"""Columns of a dataset in Arrow memory. They read like lists, at a fraction of the size of Python objects."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BLOCK = 65_536  # rows as Python objects at a time
HASH_BYTES = 32  # of a SHA-256
HASH = re.compile("[0-9a-f]{64}")
HASH_TYPE = pa.binary(HASH_BYTES)


class Column(Sequence[Any]):
    """One value per row, None where a row has none. Two columns are equal if their values are."""

    array: pa.Array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return self._values(self.array[place])
        return self._value(self.array[int(place)].as_py())

    def __iter__(self) -> Iterator[Any]:
        for block in self.blocks():
            yield from block

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            return self.array.equals(other.array) or (len(self) == len(other) and all(map(_same, self, other)))
        return isinstance(other, list) and len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self[:3]}, {len(self)} rows)"

    def blocks(self) -> Iterator[list[Any]]:
        """Yield the values as lists of up to BLOCK rows."""
        for start in range(0, len(self), BLOCK):
            yield self._values(self.array.slice(start, BLOCK))

    def _value(self, value: Any) -> Any:
        return value

    @abstractmethod
    def _values(self, array: pa.Array) -> list[Any]:
        """Return an array as Python objects."""

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """(N,) True where a row has no value."""
        return np.asarray(self.array.is_null())


class Texts(Column):
    """A column of texts."""

    def __init__(self, values: Iterable[str | None] | pa.Array | pa.ChunkedArray, *, few: bool = False) -> None:
        """`few`: the column has few distinct texts, which are stored once each."""
        if isinstance(values, Texts):
            array = values.array
        elif isinstance(values, pa.Array | pa.ChunkedArray):
            array = values
        else:
            array = pa.array(values if isinstance(values, list) else list(values), pa.large_string())
        if pa.types.is_dictionary(array.type):
            array = array.cast(pa.dictionary(pa.int32(), pa.large_string()))
        else:
            array = array.cast(pa.large_string())
            array = array.dictionary_encode() if few else array
        self.array = _whole(array)

    def _values(self, array: pa.Array) -> list[Any]:
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values

    def take(self, rows: npt.NDArray[np.int64]) -> Texts:
        """Return the texts of some rows."""
        return Texts(self.array.take(pa.array(rows)))

    def to_arrow(self, kind: pa.DataType | None = None) -> pa.Array:
        """Return the texts as an Arrow array of strings."""
        return self.array.cast(kind or pa.string())

    def distinct(self) -> list[Any]:
        """Return the distinct texts in the order of their first row."""
        found: list[Any] = pc.unique(self.array).to_pylist()
        return found

    def codes(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return (N,) the position of each text in `names`, -1 for one that is not there."""
        wanted = pa.array(list(names), pa.large_string())
        if pa.types.is_dictionary(self.array.type):
            places = pc.index_in(self.array.dictionary, wanted).fill_null(-1).to_numpy().astype(np.int64)
            own = self.array.indices.fill_null(0).to_numpy()
            found = places[own] if len(places) else np.full(len(self), -1, dtype=np.int64)
            found[self.missing] = -1
            return found
        return np.asarray(pc.index_in(self.array, wanted).fill_null(-1).to_numpy(), dtype=np.int64)

    def places(self, texts: Texts) -> npt.NDArray[np.int64]:
        """Return the first row of each of some texts, -1 for one that is not there."""
        wanted, own = (column.array.cast(pa.large_string()) for column in (texts, self))
        return np.asarray(pc.index_in(wanted, own).fill_null(-1).to_numpy(), dtype=np.int64)

    def changed(self, changes: Mapping[int, str]) -> Texts:
        """Return the texts with some rows changed."""
        if not changes:
            return self
        names = [name for name in self.distinct() if name is not None]
        names += sorted(set(changes.values()) - set(names))
        codes, missing = self.codes(names), self.missing
        number = {name: code for code, name in enumerate(names)}
        for row, text in changes.items():
            codes[row], missing[row] = number[text], False
        return Texts(pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=missing), pa.array(names)))

    def is_in(self, names: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Return (N,) which texts are one of these."""
        return self.codes(sorted(set(names))) >= 0

    def same_as(self, other: Texts) -> bool:
        """Return True if two columns have the same texts, however they are stored."""
        one, two = self.array, other.array
        if one.type != two.type:
            one, two = (array.cast(pa.large_string()) for array in (one, two))
        return bool(one.equals(two)) or self == other

    def find(self, text: str) -> int:
        """Return the first row with this text, or -1."""
        array = self.array
        if pa.types.is_dictionary(array.type):
            code = array.dictionary.index(pa.scalar(text, pa.large_string())).as_py()
            return -1 if code < 0 else int(array.indices.index(pa.scalar(code, array.indices.type)).as_py())
        return int(array.index(pa.scalar(text, pa.large_string())).as_py())

    def first_repeated(self) -> int | None:
        """Return the first row whose text stands in an earlier one, too; None if all differ."""
        if pc.count_distinct(self.array).as_py() == len(self):
            return None
        seen: set[str] = set()
        for row, text in enumerate(self):
            if text in seen:
                return row
            seen.add(text)
        return None


class Hashes(Column):
    """A column of SHA-256 hashes, 32 bytes each, which read as hexadecimal texts."""

    def __init__(self, values: Iterable[str | None] | pa.Array) -> None:
        if isinstance(values, Hashes):
            self.array = values.array
        elif isinstance(values, pa.Array | pa.ChunkedArray):
            self.array = _whole(values) if values.type == HASH_TYPE else _from_hex(_whole(values))
        else:
            raw = [None if value is None else bytes.fromhex(value) for value in values]
            self.array = pa.array(raw, HASH_TYPE)

    @classmethod
    def of_bytes(cls, values: npt.NDArray[np.uint8], missing: npt.NDArray[np.bool_] | None = None) -> Hashes:
        """Return the hashes (N, 32); None where `missing`."""
        bits = None
        if missing is not None and missing.any():
            bits = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
        data = pa.py_buffer(np.ascontiguousarray(values))
        return cls(pa.FixedSizeBinaryArray.from_buffers(HASH_TYPE, len(values), [bits, data]))

    def _value(self, value: bytes | None) -> str | None:
        return None if value is None else value.hex()

    def _values(self, array: pa.Array) -> list[Any]:
        return [None if value is None else value.hex() for value in array.to_pylist()]

    def raw(self) -> npt.NDArray[np.uint8]:
        """Return (N, 32) the hashes; zeros where a row has none."""
        array = self.array
        buffer = array.buffers()[1]
        if buffer is None:
            return np.zeros((len(array), HASH_BYTES), dtype=np.uint8)
        start = array.offset * HASH_BYTES
        flat = np.frombuffer(buffer, dtype=np.uint8, count=len(array) * HASH_BYTES, offset=start)
        values = flat.reshape(len(array), HASH_BYTES)
        return np.where(self.missing[:, None], np.uint8(0), values) if array.null_count else values

    def take(self, rows: npt.NDArray[np.int64]) -> Hashes:
        """Return the hashes of some rows."""
        return Hashes(self.array.take(pa.array(rows)))

    def codes(self) -> npt.NDArray[np.int64]:
        """Return (N,) numbers from 0 in the order of their first row, equal where the hashes are; -1 for none."""
        coded = self.array.dictionary_encode()
        return np.asarray(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)

    def is_in(self, other: Hashes) -> npt.NDArray[np.bool_]:
        """Return (N,) which hashes are in another column, too."""
        found = pc.is_in(self.array, value_set=other.array, skip_nulls=True)
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def differ(self, other: Hashes) -> npt.NDArray[np.bool_]:
        """Return (N,) True where two columns are not equal."""
        apart: npt.NDArray[np.bool_] = (self.raw() != other.raw()).any(axis=1) | (self.missing != other.missing)
        return apart

    def to_arrow(self) -> pa.Array:
        """Return hexadecimal texts as an Arrow array of strings."""
        if len(self) == 0:
            return pa.array([], pa.string())
        text = self.raw().tobytes().hex().encode()
        offsets = np.arange(len(self) + 1, dtype=np.int32) * (2 * HASH_BYTES)
        if int(offsets[-1]) != 2 * HASH_BYTES * len(self):
            raise OverflowError("too many rows for one array of strings: write them in blocks")
        bits = pa.py_buffer(np.packbits(~self.missing, bitorder="little").tobytes()) if self.array.null_count else None
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(offsets), pa.py_buffer(text), bits)


def _from_hex(array: pa.Array) -> pa.Array:
    """Return hexadecimal texts as bytes."""
    parts = []
    for start in range(0, len(array), BLOCK):
        block = array.slice(start, BLOCK)
        if block.null_count == len(block):
            parts.append(pa.nulls(len(block), HASH_TYPE))
            continue
        joined = "".join(block.fill_null("0" * (2 * HASH_BYTES)).to_numpy(zero_copy_only=False).tolist())
        values = np.frombuffer(bytes.fromhex(joined), dtype=np.uint8)
        if len(values) != len(block) * HASH_BYTES:
            raise ValueError("not a SHA-256")
        parts.append(Hashes.of_bytes(values.reshape(-1, HASH_BYTES), np.asarray(block.is_null())).array)
    return pa.concat_arrays(parts) if parts else pa.array([], HASH_TYPE)


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return an array in one piece."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    whole = (
        array.unify_dictionaries().combine_chunks() if pa.types.is_dictionary(array.type) else array.combine_chunks()
    )
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _same(one: object, other: object) -> bool:
    return bool(one == other)
