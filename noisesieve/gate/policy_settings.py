"""The limits of the gate."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from noisesieve.core.options import GATE, Limit, Settings, option, parse_count, parse_limit


@dataclass(frozen=True)
class Policy(Settings):
    """The limits of the gate; None: no such rule."""

    max_corrupted: Limit | None = option(
        Limit(Fraction(5, 100), True, "5%"),
        "Suspects allowed: a share (5%), a count (12), or none for no limit.",
        GATE,
        parse=parse_limit,
        shown="5%",
        metavar="LIMIT",
    )
    max_class_corrupted: Limit | None = option(
        None, "Suspects allowed in each class: 10%, or a count.", GATE, parse=parse_limit, metavar="LIMIT"
    )
    max_unreadable: Limit | None = option(
        Limit(Fraction(0), False, "0"),
        "Unreadable images allowed: a share, a count, or none for no limit.",
        GATE,
        parse=parse_limit,
        shown="0",
        metavar="LIMIT",
    )
    max_unknown_classes: int | None = option(
        0,
        "Classes allowed that the model does not have, or none for no limit.",
        GATE,
        parse=parse_count,
        shown="0",
        metavar="COUNT",
    )
    min_examples: int | None = option(1, "Number of images that must be scored.", GATE, minimum=1)
    confidence: float | None = option(
        None,
        "Fail only on shares that exceed the limit with this confidence, such as 0.95.",
        GATE,
        minimum=0.5,
        maximum=0.999999,
    )
