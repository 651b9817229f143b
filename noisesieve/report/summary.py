"""summary.json as typed records: the run in a few numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from noisesieve.core.documents import from_json
from noisesieve.core.files import Document
from noisesieve.core.records import Recalibration
from noisesieve.learn.evidence import TrainingFacts
from noisesieve.learn.recipes import HeadRecipe, Recipe, recipe_from_document, recipe_to_document

SCHEMA_VERSION = 2  # of report.parquet, summary.json and run.json; version 1 is read
VAGUE = 0.15  # width of an interval of the noise rate above which there are too few rows to tell


@dataclass(frozen=True)
class Flagged:
    """Flagged rows that are not waived, out of all readable rows, and how many of them are expected to be wrong."""

    rows: int
    of: int
    share: float | None
    expected_wrong: float  # sum of the corruption probabilities of the flagged rows


@dataclass(frozen=True)
class ClassFlagged:
    """The flagged rows of one class."""

    label: str
    rows: int
    of: int
    share: float | None
    expected_wrong: float
    low_evidence: bool


@dataclass(frozen=True)
class GroupFlagged:
    """The flagged rows with one value of a column, such as an annotator."""

    value: str
    rows: int
    of: int
    share: float | None
    expected_wrong: float
    estimated_noise_rate: float  # over all rows of the group


@dataclass(frozen=True)
class Groups:
    """The flagged rows by the values of a column, the highest noise rate first."""

    column: str
    values: list[GroupFlagged]


@dataclass(frozen=True)
class NoiseRate:
    """The estimated share of wrong labels among all rows, with a 95 % interval."""

    value: float | None  # None without a readable row
    low: float
    high: float

    @property
    def is_vague(self) -> bool:
        """Return True if the interval is too wide to tell anything: there are too few rows."""
        return self.value is None or self.high - self.low > VAGUE


@dataclass(frozen=True)
class Budget:
    """What it brings to look at the first rows of the ranking: how many of them are expected to be wrong."""

    first: int
    expected_wrong: float


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

    @classmethod
    def from_document(cls, document: object) -> TrainingSummary:
        """Undo `to_document`. Raises ValueError for a document of another kind."""
        values = from_json(dict[str, object], document, "training")
        recipe = recipe_from_document(values.get("recipe"))
        device = from_json(str, values.get("device"), "device")
        return cls(from_json(TrainingFacts, values, "training"), device, recipe)


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
    flagged: Flagged
    estimated_noise_rate: NoiseRate
    budget: list[Budget]
    classes: list[ClassFlagged]
    groups: Groups | None  # with --group-by
    confusions: list[Confusion]
    suspects: list[TopSuspect]
    unreadable_rows: list[UnreadableRow]
    duplicates: Duplicates
    training: TrainingSummary
    recalibration: Recalibration | None = None  # by decisions, with `evaluate --update` or `scan --decisions`

    @property
    def is_count_chosen(self) -> bool:
        """True if the floor was chosen so that as many rows are flagged as are expected to be wrong."""
        recipe = self.training.recipe
        return isinstance(recipe, HeadRecipe) and recipe.adaptive_eps

    def to_document(self) -> Document:
        """Return summary.json."""
        parts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "training"}
        document = {name: _to_json(value) for name, value in parts.items()}
        return {"schema_version": SCHEMA_VERSION, **document, "training": self.training.to_document()}

    @classmethod
    def from_document(cls, document: object) -> Summary:
        """Undo `to_document`. Raises ValueError for a document of another kind."""
        return from_json(cls, document)


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return value if value is None or isinstance(value, int) else asdict(value)
