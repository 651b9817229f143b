"""Any bytes in a table, a file of decisions, of waivers or of options give a result, or an error that says where."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisesieve.cli import build_app
from noisesieve.cli.config import read_files
from noisesieve.core.errors import InputError, NoisesieveError
from noisesieve.decisions.read import read_decisions
from noisesieve.report.waivers import read_waivers
from noisesieve.sources.containers import read_index
from noisesieve.sources.source_settings import SourceSettings

EXAMPLES = {
    "table.csv": b'path,label,annotator,split\na.png,cat,ann,train\n"b,1.png",dog,bob,val\nc.png,cat,,train\n',
    "table.tsv": b"path\tlabel\na.png\tcat\nb.png\tdog\n",
    "table.jsonl": b'{"path": "a.png", "label": "cat"}\n{"path": "b.png", "label": "dog", "n": [1, {"x": null}]}\n',
    "decisions.csv": b"id,path,sha256,given,decision,label,reviewer,decided_at,run\n"
    b"a.png,a.png,0f,cat,accept,dog,ann,2026-01-02,r\nb.png,b.png,1f,dog,unusable,,ann,2026-01-02,r\n",
    "decisions.json": b'[{"id": 1, "data": {"noisesieve_id": "a.png", "sha256": "0f"}, "annotations": [{"result": '
    b'[{"type": "choices", "value": {"choices": ["dog"]}}], "completed_by": {"email": "a@b.c"}}]}]',
    "decisions.xml": b'<annotations><image name="a.png"><tag label="dog" source="manual"/></image></annotations>',
    "waivers.csv": b"sha256,label,path,reason,date\n0f,cat,a.png,seen,2026-01-02\n",
    "noisesieve.toml": b'seed = 3\n[check]\ndevice = "cpu"\n',
}
PLACE = re.compile(r":\d+[:,]|, row \d+|, task \d+|\bline \d+|first line|end of document")
# Errors about a file as a whole, which no line can be named for.
WHOLE = re.compile(
    "no columns? |no rows|contains no decisions|is empty|every row has the label|looks like a detection table"
    "|twice|two columns|contains lists|contains fractions|not CVAT|document type|not a list of|no option|no command"
    "|It has: |nested too deeply"
)
MEMORY = 50 * 2**20  # bytes; no example here is larger than a megabyte


@st.composite
def damaged(draw: st.DrawFn, example: bytes) -> bytes:
    """Return an example with a few of its bytes replaced, repeated or removed."""
    blob = example
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(blob)))
        end = min(len(blob), start + draw(st.integers(0, 12)))
        piece = draw(st.one_of(st.binary(max_size=8), st.sampled_from(PIECES)))
        blob = blob[:start] + piece * draw(st.sampled_from([0, 1, 2, 40])) + blob[end:]
    return blob


PIECES = [
    b'"',
    b",",
    b"\t",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"[",
    b"{",
    b"\\ud800",
    b"<",
    b"&",
    b"'=1",
]
CALM = settings(
    deadline=None,
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _reader(name: str) -> Callable[[Path], object]:
    if name.startswith("table"):
        return lambda file: read_index(SourceSettings(path=file))
    if name.startswith("decisions"):
        return read_decisions
    if name.startswith("waivers"):
        return read_waivers
    return lambda file: read_files(typer.main.get_command(build_app()), [])


def _read(name: str, blob: bytes, folder: Path) -> None:
    """Read bytes as this file: a result, or an error with a place, within the memory."""
    file = folder / name
    file.write_bytes(blob)
    tracemalloc.start()
    try:
        _reader(name)(file)
    except NoisesieveError as error:
        assert file.name in str(error)
        assert PLACE.search(str(error)) or WHOLE.search(str(error)), error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY


@pytest.mark.parametrize("name", EXAMPLES)
@CALM
@given(data=st.data())
def test_any_bytes_give_a_result_or_an_error_with_a_place(
    name: str, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _read(name, data.draw(st.one_of(damaged(EXAMPLES[name]), st.binary(max_size=300))), tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("piece", PIECES)
def test_a_hundred_thousand_repetitions_take_bounded_memory(
    name: str, piece: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head, _, rest = EXAMPLES[name].partition(b"\n")
    for blob in (piece * 100_000, head + b"\n" + piece * 100_000 + b"\n" + rest, head + piece * 100_000 + b"\n" + rest):
        _read(name, blob, tmp_path)


def test_half_a_character_in_decisions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    file.write_bytes(EXAMPLES["decisions.json"].replace(b'"dog"', b'"\\ud800"'))
    with pytest.raises(InputError, match="task 0: invalid Unicode"):
        read_decisions(file)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_themselves_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(EXAMPLES[name])
    _reader(name)(tmp_path / name)
