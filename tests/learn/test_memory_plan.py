"""What a run needs is known before it starts, and compared with what is free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from noisesieve.core import memory
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.learn import memory_plan
from noisesieve.learn.memory_plan import memory_parts, require_memory
from noisesieve.learn.plan import plan_heads
from noisesieve.learn.presets import frozen
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.training_settings import TrainingOptions

NETWORK = NetworkRecipe(
    backbone="resnet8",
    image_size=32,
    epochs=20,
    warmup_epochs=6,
    ramp_epochs=4,
    sieve_start=12,
    batch_size=64,
    lr=0.1,
)


@pytest.mark.parametrize(
    "recipe", [NETWORK, frozen(1000, 10), plan_heads(TrainingOptions(), rows=10, classes=3, name="e")]
)
def test_more_rows_or_classes_need_more(recipe: NetworkRecipe) -> None:
    width = 64 if recipe.backbone == "e" else 0

    def need(rows: int, classes: int) -> int:
        return sum(memory_parts(recipe, rows=rows, classes=classes, width=width).values())

    assert need(1000, 10) < need(100_000, 10) < need(100_000, 1000)
    slope = (need(2_000_000, 10) - need(1_000_000, 10)) / 1_000_000
    assert slope < 300 + 2 * 10 * 4 + 4 * recipe.epochs + 3 * 4 * 320 + 30


def test_predictions_need_their_probabilities_once() -> None:
    recipe = replace(frozen(1000, 10), epochs=0, warmup_epochs=0, ramp_epochs=0, sieve_start=0)
    assert memory_parts(recipe, rows=1000, classes=1000)["probabilities"] == 1000 * 1000 * 4


class Notes:
    """What was said."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def __getattr__(self, name: str) -> object:
        return lambda *values, **more: None


@pytest.mark.parametrize(
    ("free", "outcome"), [(None, "quiet"), (10**10, "quiet"), (2 * 10**9, "warned"), (10**8, "refused")]
)
def test_what_may_not_fit_is_said_before_the_start(
    free: int | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "available_memory", lambda: free)
    notes = Notes()
    session = Session(notes)  # type: ignore[arg-type]

    def parts(rows: int) -> dict[str, int]:
        return {"probabilities": rows * 1000, "blocks": 15 * 10**8}

    if outcome == "refused":
        with pytest.raises(InputError, match=r"needs up to 2\.3 GB of memory, 0\.1 GB are free: blocks 1\.4 GB"):
            require_memory(parts, 1_000_000, session)
        return
    require_memory(parts, 1_000_000, session)
    assert bool(notes.warnings) == (outcome == "warned")
    if notes.warnings:
        assert "--limit " in notes.warnings[0]
        limit = int(notes.warnings[0].split("--limit ")[1].split()[0])
        assert sum(parts(limit).values()) <= 2 * 10**9 < sum(parts(1_000_000).values())


def test_the_systems_free_memory_is_known_here() -> None:
    free = memory.available_memory()
    assert free is None or 2**20 < free < 2**50
    memory.release_memory()


def test_an_array_that_would_take_most_of_the_memory_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, kind in ((None, np.ndarray), (10**6, np.ndarray), (9 * 400, np.memmap)):
        monkeypatch.setattr(memory, "available_memory", lambda free=free: free)
        room = memory.room_for((100, 10))
        assert type(room) is kind
        assert (room.shape, room.dtype, float(room.sum())) == ((100, 10), np.float32, 0.0)
        room[3] += 1
        assert float(torch.from_numpy(room).sum()) == 10
