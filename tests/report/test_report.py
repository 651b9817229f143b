"""The report's contract: columns, nulls, ranks, summaries, files whole or not at all."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from noisesieve.core.errors import InputError, OutputError, StateError
from noisesieve.core.files import atomic_write, write_json
from noisesieve.core.records import FileFacts, ImageLocation, Index, Scores
from noisesieve.core.run_lock import locked
from noisesieve.report.build_table import (
    ReportInputs,
    build_blocks,
    build_table,
    class_codes,
    most_probable,
    probability_blocks,
)
from noisesieve.report.headline import budget_sentence, noise_rate_sentence
from noisesieve.report.intervals import noise_rate_interval, wilson_interval
from noisesieve.report.report import Report, find_rows, read_report
from noisesieve.report.run import RunFolder
from noisesieve.report.schema import COLUMNS, DESCRIPTIONS, TOP
from noisesieve.report.summarize import summarize
from noisesieve.report.summary import Budget, Flagged, NoiseRate, Summary, UnreadableRow
from noisesieve.report.write_tables import write_blocks, write_table
from noisesieve.sieve.calibrate import corruption_probability
from noisesieve.sieve.decide import decide
from tests.conftest import REPOSITORY
from tests.runs import make_run, report_facts, training_summary

LABELS = ["cat", "dog", "dog", "cat", "owl", "cat"]
CLASSES = ["cat", "dog", "owl"]
PROBS = np.array(
    [[0.9, 0.05, 0.05], [0.98, 0.01, 0.01], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.01, 0.01, 0.98]], dtype=np.float64
)


def findings(**changes: Any) -> ReportInputs:
    """Six rows; the fourth cannot be read."""
    index = Index(
        name="x",
        kind="csv",
        root=Path(),
        ids=[f"{i}.png" for i in range(6)],
        paths=[f"{i}.png" for i in range(6)],
        labels=LABELS,
        locate=lambda i: ImageLocation(""),
        lines=np.arange(2, 8),
        carried=pa.table({"annotator": list("abcdef"), "loss": [1, 2, 3, 4, 5, 6]}),
        **changes,
    )
    status = ["ok", "ok", "ok", "missing file", "ok", "ok"]
    sha = ["a" * 64, "b" * 64, "b" * 64, None, "c" * 64, "d" * 64]
    rows = np.array([0, 1, 2, 4, 5])
    codes = class_codes([LABELS[i] for i in rows], CLASSES)
    probs = PROBS[[0, 1, 2, 3, 4]]
    scores = Scores(probs, np.zeros(5), np.array([0.4, 0.4, 0.2]), 2.0)
    verdicts = decide(scores, codes, eps=1e-3, trusted=np.zeros(5, dtype=np.bool_))
    file_facts = FileFacts(sha, status, np.full(6, 8), np.full(6, 8))
    return ReportInputs(index, file_facts, rows, CLASSES, codes, scores, verdicts)


def test_the_columns_are_the_contracts_in_order() -> None:
    table = build_table(findings())
    assert table.column_names == [*COLUMNS, "annotator", "user_loss"]
    assert table["user_loss"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert table.schema.field("verdict").type == pa.dictionary(pa.int8(), pa.string())
    assert build_table(findings(splits=["train"] * 6)).column_names[len(COLUMNS)] == "split"


def test_every_column_is_described_in_the_file_and_in_the_readme(tmp_path: Path) -> None:
    write_table(build_table(findings()), tmp_path / "report.parquet", {})
    schema = pq.read_schema(tmp_path / "report.parquet")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for name, text in DESCRIPTIONS.items():
        assert schema.field(name).metadata[b"description"].decode() == text
        assert re.search(rf"^\| {name} \| [^|]+ \| {re.escape(text)} \|$", readme, re.MULTILINE), name


def test_an_unreadable_row_has_null_in_every_score_column() -> None:
    row = build_table(findings()).slice(3, 1).to_pylist()[0]
    assert row["verdict"] == row["paper_verdict"] == "unreadable"
    assert row["status"] == "missing file"
    scored = [
        name for name in COLUMNS if name not in ("row", "id", "path", "label", "verdict", "paper_verdict", "status")
    ]
    for name in scored:
        assert row[name] in (None, False, 5), name  # 5 is its line in the table


def test_rows_never_shift() -> None:
    table = build_table(findings()).to_pylist()
    assert [row["row"] for row in table] == list(range(6))
    assert [row["label"] for row in table] == LABELS
    assert [row["predicted_label"] for row in table] == ["cat", "cat", "dog", None, "owl", "owl"]
    assert table[5]["top_labels"] == ["owl", "cat", "dog"]
    assert table[5]["top_probabilities"] == pytest.approx([0.98, 0.01, 0.01])


def test_the_terms_and_the_verdict_agree() -> None:
    for row in build_table(findings()).to_pylist():
        if row["verdict"] != "unreadable":
            assert row["regularized_loss"] == pytest.approx(row["loss"] + row["regularizer"])
            assert row["margin"] == pytest.approx(row["regularized_loss"] - row["threshold"], abs=1e-9)
            assert (row["verdict"] == "corrupted") == (row["margin"] >= 0)
            suggested = row["verdict"] == "corrupted" and row["predicted_label"] != row["label"]
            assert row["suggested_label"] == (row["predicted_label"] if suggested else None)


def test_the_rank_follows_the_given_labels_probability() -> None:
    table = build_table(findings()).to_pylist()
    ranked = sorted((row for row in table if row["rank"] is not None), key=lambda row: row["rank"])
    assert [row["rank"] for row in ranked] == [1, 2, 3, 4, 5]
    chances = [row["label_probability"] for row in ranked]
    assert chances == sorted(chances)


def test_trusted_rows_are_never_corrupted() -> None:
    found = findings()
    verdicts = decide(found.scores, found.codes, eps=1e-3, trusted=np.ones(5, dtype=np.bool_))
    assert not verdicts.corrupted.any()
    assert not verdicts.paper_corrupted.any()
    assert (verdicts.margin >= 0).any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rows", [3, 500])
def test_the_corruption_probability_is_one_and_never_rises_along_rank(seed: int, rows: int) -> None:
    g = torch.Generator().manual_seed(seed)
    probs = (torch.randn(rows, 5, generator=g, dtype=torch.float64) * 4).softmax(1)
    labels = torch.randint(5, (rows,), generator=g)
    scores = Scores(probs.numpy(), np.zeros(rows), np.full(5, 0.2), 2.0)
    verdicts = decide(scores, labels.numpy(), eps=1e-3, trusted=np.zeros(rows, dtype=np.bool_))
    along = verdicts.corruption_probability[np.argsort(verdicts.rank)].astype(np.float32)
    assert along.min() >= 0
    assert along.max() <= 1
    assert (np.diff(along) <= 0).all()


def test_a_mixture_tells_two_kinds_apart() -> None:
    g = torch.Generator().manual_seed(0)
    odds = torch.cat([torch.randn(200, generator=g) - 5, torch.randn(800, generator=g) + 5]).double()
    chances = torch.sigmoid(odds)
    got = corruption_probability(chances, chances < 0.5, chances.argsort(), precision=1.0)
    assert got[:200].mean() > 0.98
    assert got[200:].mean() < 0.02


def test_the_summary_counts_what_the_table_holds() -> None:
    table = build_table(findings())
    found = summarize(Report(report_facts(CLASSES), Path("x"), table), undecided=0, training=training_summary())
    assert found.examples == 6
    assert found.unreadable == 1
    assert found.clean + found.corrupted == found.readable == 5
    assert sum(row.rows for row in found.classes) == found.flagged.rows == found.corrupted
    assert sum(row.count for row in found.confusions) == table["suggested_label"].drop_null().length()
    assert found.unreadable_rows == [UnreadableRow("3.png", "missing file")]
    assert found.duplicates.groups == 1
    assert found.duplicates.with_different_labels == 0
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert Summary.from_document(document) == found


def test_wilsons_interval_holds_the_share_and_stays_in_range() -> None:
    for hits, total in ((0, 10), (5, 10), (10, 10), (1, 1000)):
        low, high = wilson_interval(hits, total)
        assert 0 <= low <= hits / total <= high <= 1
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_table(build_table(findings()), tmp_path / name, report_facts(CLASSES).to_document())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_report_is_read_back_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    write_table(build_table(findings()), tmp_path / "report.parquet", report_facts(CLASSES).to_document())
    found = read_report(tmp_path)
    assert found.facts.classes == CLASSES
    assert len(found.to_pandas()) == 6
    assert found.corrupted["rank"].to_pylist() == sorted(found.corrupted["rank"].to_pylist())
    write_table(build_table(findings()), tmp_path / "report.parquet", {"schema_version": 99})
    with pytest.raises(StateError, match=r"99.*2"):
        read_report(tmp_path)
    (tmp_path / "report.parquet").write_bytes(b"PAR1")
    with pytest.raises(StateError, match="damaged"):
        read_report(tmp_path)
    with pytest.raises(InputError, match="no such report"):
        read_report(tmp_path / "nowhere")


def test_probabilities_are_in_class_order_and_null_where_unreadable() -> None:
    table = next(probability_blocks(findings())).to_pylist()
    assert table[3]["probabilities"] is None
    assert table[5]["probabilities"] == pytest.approx([0.01, 0.01, 0.98])


def test_many_row_groups_hold_65536_rows_each(tmp_path: Path) -> None:
    write_table(pa.table({"x": np.arange(140_000)}), tmp_path / "x.parquet")
    metadata = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [65536, 65536, 8928]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    write_json(target, {"old": True})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(target, {"new": math.nan})
    with pytest.raises(RuntimeError), atomic_write(target) as file:
        file.write(b"half")
        raise RuntimeError
    assert json.loads(target.read_text()) == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_second_holder_of_a_folder_is_refused_by_pid(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        (tmp_path / "run/file").write_text("")
        with pytest.raises(OutputError, match=r"process \d+ is writing"), locked(tmp_path / "run"):
            pass
    with locked(tmp_path / "run"):
        pass
    with locked(tmp_path / "empty"):
        pass
    assert not (tmp_path / "empty").exists()


def test_the_interval_of_the_noise_rate_holds_the_estimate_and_widens_with_few_rows() -> None:
    for estimate in (0.0, 0.01, 0.2, 0.9, 1.0):
        low, high = noise_rate_interval(estimate, 5000)
        few_low, few_high = noise_rate_interval(estimate, 60)
        assert 0 <= few_low <= low <= estimate <= high <= few_high <= 1
    assert NoiseRate(0.2, *noise_rate_interval(0.2, 60)).is_vague
    assert not NoiseRate(0.2, *noise_rate_interval(0.2, 5000)).is_vague


def test_the_headline_says_what_a_budget_buys_and_when_there_are_too_few_labels() -> None:
    report = Report(report_facts(CLASSES), Path("x"), build_table(findings()))
    found = summarize(report, undecided=0, training=training_summary(), group_by="status")
    assert found.groups is not None
    assert sum(group.rows for group in found.groups.values) == found.flagged.rows
    assert "too few to tell" in noise_rate_sentence(found)
    assert budget_sentence(found) == ""
    sure = replace(
        found,
        flagged=Flagged(60, 1000, 0.06, 50.0),
        estimated_noise_rate=NoiseRate(0.05, 0.03, 0.08),
        budget=[Budget(10, 9.6), Budget(20, 19.0), Budget(50, 44.0), Budget(100, 52.0)],
    )
    assert budget_sentence(sure) == "By the same estimate about 19 of the first 20 and 44 of the first 50 are wrong."
    assert noise_rate_sentence(sure) == "Estimated noise rate: 5.0% (95 % interval 3.0% to 8.0%)."


@pytest.mark.parametrize("damage", ["null", "[1]", '"x"', "[" * 100_000, "{}", "flip", "unfinished"])
@pytest.mark.parametrize("name", ["run.json", "summary.json"])
def test_a_damaged_or_unfinished_run_is_refused_by_name(tmp_path: Path, colours: Path, name: str, damage: str) -> None:
    make_run(colours, tmp_path / "run")
    file = tmp_path / "run" / name
    text = file.read_text()
    if damage == "unfinished":
        record = RunFolder(tmp_path / "run").read()
        assert record is not None
        write_json(tmp_path / "run/run.json", replace(record, complete=False).to_document())
    else:
        file.write_text(text.replace("1", "2", 1) if damage == "flip" else damage)
    with pytest.raises(StateError, match="not finished" if damage == "unfinished" else name.replace(".", "[.]")):
        _ = read_report(tmp_path / "run").summary


def test_the_most_probable_classes_are_those_of_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 5, 40):
        probs = rng.integers(0, 6, (200, classes)).astype(np.float32)  # many ties
        wanted = np.argsort(-probs, axis=1, kind="stable")[:, :TOP]
        assert np.array_equal(most_probable(probs), wanted)
        assert np.array_equal(probs, probs.copy())


def test_a_report_is_read_by_columns_and_rows_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisesieve.report.build_table.BLOCK", 4)  # two row groups for six rows
    facts = report_facts(CLASSES).to_document()
    write_blocks(build_blocks(findings()), tmp_path / "report.parquet", facts)
    assert pq.ParquetFile(tmp_path / "report.parquet").num_row_groups == 2
    found, whole = read_report(tmp_path), build_table(findings())
    assert found.table.equals(whole)
    rows = np.array([5, 0, 4, 2])
    assert found.take(rows, "id", "top_labels").equals(whole.select(["id", "top_labels"]).take(pa.array(rows)))
    assert found.suspects(0.0)["row"].to_pylist() == found.suspect_rows(0.0).tolist()
    assert [len(block) for block in found.take_blocks(np.array([1, 2, 5]))] == [2, 1]
    changed = list(found.blocks_with("waived", np.array([True] * 5 + [False])))
    assert pa.concat_tables(changed)["waived"].to_pylist() == [True] * 5 + [False]
    assert find_rows(found, ["5.png", "0", "3.png"]) == [5, 0, 3]
