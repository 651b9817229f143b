"""The loop: what is sieved has no say, what is decided stays decided, and the seed says the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisesieve.core.errors import Stopped, TrainingError
from noisesieve.core.records import Bytes, Ints
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.loop import Loop
from noisesieve.learn.recipes import NetworkRecipe as Recipe
from noisesieve.learn.training_data import TrainingData

RECIPE = Recipe(
    backbone="resnet8",
    image_size=8,
    epochs=6,
    warmup_epochs=2,
    ramp_epochs=2,
    sieve_start=4,
    batch_size=16,
    lr=0.05,
    flip=False,
)


@dataclass(frozen=True)
class Memory:
    """Pixels in memory."""

    images: Bytes

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> int:
        return self.images.shape[1]

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        for rows in order:
            yield self.images[rows]


def training_data(rows: int = 60, classes: int = 3, flips: int = 6, seed: int = 0) -> TrainingData:
    """Bright blotches in one of three colours; the first `flips` labels are wrong."""
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % classes
    images = rng.integers(0, 120, (rows, 8, 8, 3))
    images[np.arange(rows), :, :, truth] += 120
    labels = truth.copy()
    labels[:flips] = (labels[:flips] + 1) % classes
    trusted = torch.zeros(rows, dtype=torch.bool)
    return TrainingData(Memory(images.astype(np.uint8)), torch.from_numpy(labels), classes, trusted)


def loop(given: TrainingData | None = None, recipe: Recipe = RECIPE, **options: Any) -> Loop:
    session = TrainingSession(stop=options.pop("stop", lambda: None))
    return Loop(given or training_data(), recipe, session, **{"checkpoints": None, **options})


def weights(one: Loop) -> list[torch.Tensor]:
    momentum = [s["momentum_buffer"] for s in one.state.optimizer.state.values() if "momentum_buffer" in s]
    return [value.clone() for value in (*one.state.model.state_dict().values(), *momentum)]


def one_step(made: Loop, batch: torch.Tensor) -> None:
    made.state.epoch_facts = {"loss": 0.0, "kept": 0, "skipped": 0}
    made.state.model.train()
    made.updater.begin([0.0])
    plan, images, columns = next(made.loader.steps(made.plans([batch])))
    made.train_step(plan, images, columns, 4)


def test_no_row_is_dropped_before_the_sieve_starts() -> None:
    made = loop()
    _, scores = made.run()
    kept = [row.kept for row in scores.history]
    assert kept[: RECIPE.sieve_start - 1] == [60, 60, 60]
    assert scores.flagged_epochs.min() >= 0
    assert scores.flagged_epochs.max() <= 1
    assert len(scores.history) == 6


def test_a_dropped_row_has_no_gradient() -> None:
    whole, other = loop(), loop(replace(training_data(), pixels=poisoned(training_data().pixels, row=5)))
    other.loader.mean, other.loader.std = (
        whole.loader.mean,
        whole.loader.std,
    )  # the dataset's own, poisoned row included
    for made in (whole, other):
        made.state.keep[5] = False
        one_step(made, torch.arange(16))
    for left, right in zip(weights(whole), weights(other), strict=True):
        assert torch.equal(left, right)


def poisoned(pixels: Any, row: int) -> Memory:
    images = pixels.images.copy()
    images[row] = 255 - images[row]
    return Memory(images)


def test_a_batch_without_a_kept_row_changes_nothing() -> None:
    made = loop()
    one_step(made, torch.arange(16))
    before = weights(made)
    made.state.keep[:16] = False
    one_step(made, torch.arange(16))
    for left, right in zip(before, weights(made), strict=True):
        assert torch.equal(left, right)
    assert made.state.epoch_facts["skipped"] == 1


def test_trusted_rows_are_never_sieved_out() -> None:
    given = training_data(flips=20)
    trusted = torch.zeros(60, dtype=torch.bool)
    trusted[:20] = True
    state, scores = loop(replace(given, trusted=trusted), replace(RECIPE, epochs=10)).run()
    assert (scores.flagged_epochs[:20] == 0).all()
    assert state.keep[:20].all()


def test_a_dropped_row_can_come_back() -> None:
    made = loop()
    made.state.epoch = 5
    made.sieve.keep(torch.arange(60) % 2 == 0)
    assert int(made.state.keep.sum()) == 30
    made.sieve.keep(torch.ones(60, dtype=torch.bool))
    assert made.state.keep.all()


def test_dropping_every_row_is_a_diagnosis() -> None:
    made = loop()
    made.state.epoch = 5
    with pytest.raises(TrainingError, match="Every row was dropped after epoch 5"):
        made.sieve.keep(torch.zeros(60, dtype=torch.bool))
    assert made.state.keep.all()


def test_a_loss_that_is_not_finite_stops_with_epoch_and_step() -> None:
    with pytest.raises(TrainingError, match=r"not finite in epoch \d+, step \d+"):
        loop(recipe=replace(RECIPE, lr=1e30)).run()


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    first, again, other = (loop(recipe=replace(RECIPE, seed=seed)).run()[1].probs for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("asked", [1, 5, 8, 13, 17, 20, 22, 24, 25, 26, 27, 28, 31, 34, 37])
def test_a_run_resumed_from_any_step_ends_in_the_same_bits(tmp_path: Path, asked: int) -> None:
    recipe = replace(RECIPE, adaptive_warmup=True, flip=None, warmup_epochs=3)
    recipe = replace(recipe, settle_epochs=2, sieve_start=6, epochs=8)  # scored by the sieve as soon as it settled
    given = training_data(rows=600)  # enough for a held-out part
    recipe = replace(recipe, batch_size=150)
    _, undisturbed = loop(given, recipe).run()
    left = iter(range(asked))  # between steps, and between batches of scoring

    def stop() -> Stopped | None:
        return None if next(left, None) is not None else Stopped("enough", exit_code=143)

    checkpoints = Checkpoints(tmp_path, identity="x", warn=print)
    with pytest.raises(Stopped):
        loop(given, recipe, checkpoints=checkpoints, stop=stop).run()
    _, resumed = loop(given, recipe, checkpoints=checkpoints).run()
    assert (resumed.probs == undisturbed.probs).all()
    assert (resumed.flagged_epochs == undisturbed.flagged_epochs).all()
    assert [row.kept for row in resumed.history] == [row.kept for row in undisturbed.history]


def test_the_second_opinion_leaves_no_trace_in_the_weights() -> None:
    made = loop(recipe=replace(RECIPE, settle_epochs=2, sieve_start=6, epochs=8))
    before: list[torch.Tensor] = []
    train = made.train_epoch

    def watched() -> None:
        if made.state.epoch == 3:
            before.extend(weights(made))
        if made.state.epoch == 5:
            assert all(torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))
            assert not made.state.stashed
        train()
        if made.state.epoch == 3:
            assert any(not torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))

    made.train_epoch = watched  # type: ignore[method-assign]
    state, scores = made.run()
    assert [row.phase for row in scores.history][:5] == ["warm-up", "warm-up", "settle", "settle", "ramp"]
    assert state.ce_snapshot_count == 2
    assert np.allclose(scores.probs.sum(axis=1), 1)


def test_the_train_pass_scores_without_a_pass_of_its_own() -> None:
    recipe = replace(RECIPE, score_pass="train", epochs=8)
    made = loop(training_data(rows=96, flips=8), recipe)
    calls = 0
    score = made.scorer.score

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return score(*arguments, **options)

    made.scorer.score = counted  # type: ignore[method-assign]
    _, scores = made.run()
    assert calls == 1  # the verdict's own
    assert [row.kept for row in scores.history][:3] == [96, 96, 96]
    assert scores.history[-1].kept < 96


def test_planted_flips_are_the_least_probable_labels() -> None:
    _, scores = loop(training_data(rows=240, flips=24), replace(RECIPE, epochs=10)).run()
    given = training_data(rows=240, flips=24).labels.numpy()
    worst = scores.probs[np.arange(240), given].argsort()[:24]
    assert set(worst) == set(range(24))


def test_a_dataset_smaller_than_a_batch_still_trains() -> None:
    _, scores = loop(training_data(rows=7, flips=0)).run()
    assert scores.probs.shape == (7, 3)


def test_the_step_pass_sieves_with_the_logits_of_its_own_step() -> None:
    recipe = replace(RECIPE, score_pass="step", sieve_start=3, epochs=4, loop_eps=1e-8, exact_label=True)
    made, seen = loop(training_data(rows=96, flips=12), recipe), []

    def observe(logits: torch.Tensor, rows: torch.Tensor) -> None:
        if made.state.epoch >= 3:
            probs = logits.double().softmax(dim=1)
            own = -probs.gather(1, made.labels[rows, None]).squeeze(1).log()
            clean = own < -(probs + 1e-8).log().mean(dim=1)  # restated in float64
            seen.append(torch.equal(made.state.keep[rows], clean))

    made.observe = observe
    _, scores = made.run()
    assert len(seen) > 6
    assert all(seen)
    assert [row.kept for row in scores.history][:2] == [96, 96]
    assert scores.history[-1].kept < 96


def test_the_prior_is_recounted_over_kept_rows_in_each_epoch() -> None:
    data = training_data(rows=60)
    made = loop(data, replace(RECIPE, recount_prior=True))
    made.recount_prior()
    assert torch.allclose(made.prior, torch.bincount(data.labels, minlength=3).double() / 60)
    made.state.prior = None
    made.state.keep = data.labels != 2
    made.recount_prior()
    counts = torch.bincount(data.labels[data.labels != 2], minlength=3).double()
    assert torch.allclose(made.prior, counts / counts.sum())
    assert made.prior[2] == 0
    made.state.keep = data.labels != 0  # within the epoch the prior stays
    made.recount_prior()
    assert made.prior[2] == 0


def test_the_last_checkpoint_is_written_before_the_sums_in_it_become_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Checkpoints._write

    def slow(self: Checkpoints, number: int, checkpoint: Any) -> None:
        time.sleep(0.2)
        plain(self, number, checkpoint)

    monkeypatch.setattr(Checkpoints, "_write", slow)
    with Checkpoints(tmp_path, identity="x", warn=print) as store:
        _, whole = loop(checkpoints=store).run()
    with Checkpoints(tmp_path, identity="x", warn=print) as store:  # killed after the training, before the report
        _, again = loop(checkpoints=store).run()
    assert np.array_equal(whole.probs, again.probs)


@pytest.mark.parametrize("changes", [{"score_pass": "step", "recount_prior": True, "sieve_start": 3}])
def test_the_codes_recipe_resumes_with_the_same_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    recipe = replace(RECIPE, **changes)
    whole = loop(training_data(), recipe).run()[1]
    store = Checkpoints(tmp_path, identity="x", warn=lambda text: None)
    steps = 0

    def stop() -> Stopped | None:
        nonlocal steps
        steps += 1
        return Stopped("asked", exit_code=130) if steps == 14 else None

    with pytest.raises(Stopped):
        Loop(training_data(), recipe, TrainingSession(stop=stop), checkpoints=store).run()
    again = Loop(training_data(), recipe, TrainingSession(), checkpoints=store).run()[1]
    assert np.array_equal(whole.probs, again.probs)
