"""retrain.json: the table of what was tried, which was saved, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from noisesieve.commands._retrain_rows import RoleCounts
from noisesieve.core.documents import from_json
from noisesieve.core.files import Document
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.measure.accuracy_chart import AccuracyTable

SCHEMA_VERSION = 3  # of retrain.json; 1 and 2 are those of folders that cannot be continued
SCAN = "the scan's own model"
ALL, KEPT, SUGGESTED, CORRECTED, CONSISTENT = (
    "all rows, as given",
    "kept rows",
    "kept rows and suggestions",
    "labels corrected by the noise model",
    "kept rows and consistency",
)
HEADS, NETWORK = "heads", "network"


@dataclass(frozen=True)
class CandidateFigures:
    """One row of the table that a retraining gives."""

    name: str
    rows: int  # trained on with a label
    weight_decay: float | None  # of heads; None: the scan's own, or a network
    agreement: float | None  # with given labels that it was not trained on; None: it was trained on all of them
    accuracy: float | None  # on the test set; None without one


@dataclass(frozen=True)
class RetrainSummary:
    """retrain.json."""

    kind: str  # heads or network
    version: str
    run: str
    output: str
    device: str
    rows: RoleCounts
    candidates: list[CandidateFigures]
    chosen: str  # the candidate that was saved
    best: str  # the candidate that predicts most of the given labels that it was not shown
    compared_on: int  # rows whose given labels the candidates were compared by; 0: there was only one
    test_rows: int | None
    saved_accuracy: float | None  # of the saved model on the test set
    seconds: float
    recipe: RetrainRecipe | None = None  # of a network
    passes: int | None = None  # images that networks were trained on
    accuracy: AccuracyTable | None = None  # of networks; None: no test set

    @property
    def why(self) -> str:
        """One sentence: which candidate was saved, and why."""
        if not self.compared_on:
            return f"Saved: {self.chosen}, the only one that was trained."
        agreement = {row.name: row.agreement or 0.0 for row in self.candidates}
        sentence = f"Saved: {self.chosen}: {agreement[self.chosen]:.1%} of the given labels that it was not shown, "
        if self.chosen == self.best:
            sentence += "the most of all."
        else:
            sentence += (
                f"which may be as many, but for chance, as the most, {agreement[self.best]:.1%} ({self.best}); then "
                "this one is preferred."
            )
        sentence += " The test set did not choose."
        if self.kind == NETWORK:
            sentence += (
                f" For the comparison {self.compared_on:,} rows were kept out of every training; what is saved was "
                "then trained with them too. The scan's own model was shown every label, so it takes no part."
            )
        return sentence

    def to_document(self) -> Document:
        """Return retrain.json."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_document(cls, document: object) -> RetrainSummary:
        """Undo `to_document`. Raises ValueError for a document of another kind."""
        return from_json(cls, document)
