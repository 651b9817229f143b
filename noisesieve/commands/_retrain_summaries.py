"""retrain.json: of a network, or of heads with the table of what was tried and which were saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from noisesieve.commands._retrain_rows import RoleCounts
from noisesieve.core.documents import from_json
from noisesieve.core.files import Document, Json
from noisesieve.learn.recipes import LAST, RetrainRecipe
from noisesieve.measure.accuracy_chart import AccuracyTable

NETWORK_VERSION, HEADS_VERSION = 1, 2  # schema versions of retrain.json
SCAN = "the scan's own model"
ALL, KEPT, SUGGESTED = "all rows, as given", "kept rows", "kept rows and suggestions"


@dataclass(frozen=True)
class CandidateFigures:
    """One row of the table that a retraining of heads gives."""

    name: str
    rows: int  # trained on
    weight_decay: float | None  # None: the scan's own
    agreement: float  # with the given labels of all readable rows, out of fold
    accuracy: float | None  # on the test set; None without one


@dataclass(frozen=True)
class HeadsRetrainSummary:
    """retrain.json of heads."""

    version: str
    run: str
    output: str
    rows: RoleCounts
    candidates: list[CandidateFigures]
    chosen: str
    test_rows: int | None
    seconds: float

    @property
    def why(self) -> str:
        """One sentence: which candidate was saved, and why."""
        best = next(row for row in self.candidates if row.name == self.chosen)
        return (
            f"Saved: {self.chosen}. It predicts {best.agreement:.1%} of the given labels that it was not shown, the "
            "most of all; the test set did not choose."
        )

    def to_document(self) -> Document:
        """Return retrain.json."""
        return {"schema_version": HEADS_VERSION, "kind": "heads", **asdict(self)}

    @classmethod
    def from_document(cls, document: object) -> HeadsRetrainSummary:
        """Undo `to_document`. Raises ValueError for a document of another kind."""
        return from_json(cls, document)


@dataclass(frozen=True)
class RetrainSummary:
    """retrain.json of a network."""

    version: str
    run: str
    output: str
    device: str
    recipe: RetrainRecipe
    rows: RoleCounts
    passes: int  # images trained on
    seconds: float
    accuracy: AccuracyTable | None  # None: no test set

    def to_document(self) -> Document:
        """Return retrain.json."""
        accuracy = None if self.accuracy is None else self.accuracy.to_document()
        return {"schema_version": NETWORK_VERSION, **asdict(self), "accuracy": accuracy}

    @classmethod
    def from_document(cls, document: Json) -> RetrainSummary:
        """Undo `to_document`."""
        parts = {name: document[name] for name in ("version", "run", "output", "device", "passes", "seconds")}
        accuracy = document["accuracy"]
        return cls(
            **parts,
            recipe=RetrainRecipe(**{**document["recipe"], "depths": tuple(document["recipe"].get("depths", (LAST,)))}),
            rows=RoleCounts(**document["rows"]),
            accuracy=None if accuracy is None else AccuracyTable.from_document(accuracy),
        )
