"""summary.json as typed records: the run in a few numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from noisesieve.core.files import Document, Json
from noisesieve.core.recipes import Recipe, recipe_from_document, recipe_to_document
from noisesieve.core.records import DepthEvidence, JudgeEvidence, LossEvidence, TrainingFacts

SCHEMA_VERSION = 1  # of report.parquet, summary.json and run.json
T = TypeVar("T")


@dataclass(frozen=True)
class Rate:
    """Flagged rows that are not waived, out of all readable rows, with Wilson's 95 % interval."""

    corrupted: int
    of: int
    share: float | None
    low: float
    high: float


@dataclass(frozen=True)
class ClassRate:
    """The rate of one class."""

    label: str
    corrupted: int
    of: int
    share: float | None
    low: float
    high: float
    low_evidence: bool


@dataclass(frozen=True)
class Estimate:
    """What the corruption probabilities add up to."""

    noise_rate: float | None  # over all rows
    wrong_suspects: float  # expected number of wrong labels among the suspects


@dataclass(frozen=True)
class Confusion:
    """A pair of given and suggested label, and how many suspects have it."""

    given: str
    suggested: str
    count: int


@dataclass(frozen=True)
class TopSuspect:
    """One of the most suspicious rows."""

    id: str
    label: str
    suggested_label: str | None
    corruption_probability: float
    label_probability: float
    margin: float


@dataclass(frozen=True)
class UnreadableRow:
    """A row that cannot be read, with the reason."""

    id: str
    status: str


@dataclass(frozen=True)
class Duplicates:
    """Rows with the same bytes, and those of them with different labels."""

    groups: int
    rows: int
    with_different_labels: int
    examples: list[list[dict[str, str]]]


@dataclass(frozen=True)
class TrainingSummary:
    """How the run was trained."""

    facts: TrainingFacts
    device: str
    recipe: Recipe

    def to_document(self) -> Document:
        """Return the training as JSON."""
        facts = {name: value for name, value in asdict(self.facts).items() if value is not None}
        return {**facts, "device": self.device, "recipe": recipe_to_document(self.recipe)}


@dataclass(frozen=True)
class Summary:
    """summary.json."""

    examples: int
    readable: int
    clean: int
    corrupted: int
    waived: int
    unreadable: int
    undecided: int
    paper_corrupted: int
    noise_rate: Rate
    estimate: Estimate
    classes: list[ClassRate]
    confusions: list[Confusion]
    suspects: list[TopSuspect]
    unreadable_rows: list[UnreadableRow]
    duplicates: Duplicates
    training: TrainingSummary

    def to_document(self) -> Document:
        """Return summary.json."""
        parts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "training"}
        document = {name: _to_json(value) for name, value in parts.items()}
        return {"schema_version": SCHEMA_VERSION, **document, "training": self.training.to_document()}

    @classmethod
    def from_document(cls, document: Json) -> Summary:
        """Undo `to_document`. Raises KeyError or TypeError for a document of another kind."""
        training = document["training"]
        counts = ("examples", "readable", "clean", "corrupted", "waived", "unreadable", "undecided", "paper_corrupted")
        return cls(
            **{name: int(document[name]) for name in counts},
            noise_rate=_typed(Rate, document["noise_rate"]),
            estimate=_typed(Estimate, document["estimate"]),
            classes=[_typed(ClassRate, row) for row in document["classes"]],
            confusions=[_typed(Confusion, row) for row in document["confusions"]],
            suspects=[_typed(TopSuspect, row) for row in document["suspects"]],
            unreadable_rows=[_typed(UnreadableRow, row) for row in document["unreadable_rows"]],
            duplicates=_typed(Duplicates, document["duplicates"]),
            training=TrainingSummary(
                _training_facts(training), training["device"], recipe_from_document(training["recipe"])
            ),
        )


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return value if isinstance(value, int) else asdict(value)


def _training_facts(values: Json) -> TrainingFacts:
    found = _typed(TrainingFacts, values)
    depths, losses, judges = (values.get(f"compared_{name}") for name in ("depths", "losses", "judges"))
    return replace(
        found,
        compared_depths=None if depths is None else [_typed(DepthEvidence, row) for row in depths],
        compared_losses=None if losses is None else [_typed(LossEvidence, row) for row in losses],
        compared_judges=None if judges is None else [_typed(JudgeEvidence, row) for row in judges],
    )


def _typed(kind: type[T], values: Json) -> T:
    """Return a dataclass from the keys of a JSON object that it has."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})
