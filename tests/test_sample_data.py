"""The sample data is what its README says."""

from __future__ import annotations

import csv

from tests.conftest import SAMPLE


def test_the_sample_data_is_small_complete_and_a_fifth_wrong() -> None:
    files = {str(path.relative_to(SAMPLE / "digits")): path.stat().st_size for path in SAMPLE.glob("digits/*/*.png")}
    with (SAMPLE / "truth.csv").open(newline="") as file:
        truth = {row["path"]: row["label"] for row in csv.DictReader(file)}
    assert files.keys() == truth.keys()
    assert len(files) == 1797
    assert sum(files.values()) < 2_000_000
    wrong = sum(path.split("/")[0] != label for path, label in truth.items())
    assert wrong == 378
