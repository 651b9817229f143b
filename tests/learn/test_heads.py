"""Heads on frozen features: who judges whom, what the sieve drops, and that a seed says the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from noisesieve.core.errors import Stopped, TrainingError
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import Features
from noisesieve.learn.frozen.folds import assign_folds
from noisesieve.learn.frozen.head_data import HeadData
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.frozen.projection import Projection
from noisesieve.learn.losses import training_loss
from noisesieve.learn.plan import plan
from noisesieve.learn.recipes import Recipe
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.sieve.decide import decide

ROWS, CLASSES, WIDTH = 300, 4, 24


def recipe(**changes: object) -> Recipe:
    made = plan(
        TrainingOptions(weights="lite0", freeze=True),
        rows=ROWS,
        classes=CLASSES,
        longest_sides=np.array([64]),
        device="cpu",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def blobs(wrong: int = 60, *, views: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, V, D) around four centres, given labels of which the first are wrong, and the truth."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(ROWS) % CLASSES
    centres = torch.randn((CLASSES, WIDTH), generator=generator) * 2
    features = centres[truth][:, None] + torch.randn((ROWS, views, WIDTH), generator=generator)
    labels = truth.clone()
    labels[:wrong] = (truth[:wrong] + 1 + torch.randint(0, CLASSES - 1, (wrong,), generator=generator)) % CLASSES
    return features.half(), labels, truth


def heads(features: Tensor, labels: Tensor, made: Recipe | None = None, **options: object) -> Heads:
    trusted = options.pop("trusted", torch.zeros(len(labels), dtype=torch.bool))
    contents, stop = options.pop("contents", None), options.pop("stop", lambda: None)
    seen = Features.in_memory({"last": features.numpy()}, contents)  # type: ignore[arg-type]
    data = HeadData(seen, labels, CLASSES, trusted)  # type: ignore[arg-type]
    return Heads(data, made or recipe(), TrainingSession(stop=stop), **options)  # type: ignore[arg-type]


def test_every_row_is_left_out_once_in_each_partition() -> None:
    _, labels, _ = blobs()
    held_out_head = assign_folds(labels, torch.arange(ROWS), folds=5, partitions=2, seed=0)
    assert held_out_head.shape == (ROWS, 2)
    assert (held_out_head[:, 0] < 5).all()
    assert ((held_out_head[:, 1] >= 5) & (held_out_head[:, 1] < 10)).all()
    for head in range(5):
        counts = torch.bincount(labels[held_out_head[:, 0] == head], minlength=CLASSES)
        spread = torch.bincount(labels, minlength=CLASSES) / 5
        assert (counts - spread).abs().max() < 2


def test_copies_of_a_image_are_left_out_together() -> None:
    features, labels, _ = blobs()
    twice = torch.cat((features, features[:60]))
    named = torch.cat((labels, labels[:60]))  # every wrong row is there twice
    contents = torch.cat((torch.arange(ROWS), torch.arange(60)))
    trained = heads(twice, named, contents=contents)
    assert torch.equal(trained.held_out_head[:60], trained.held_out_head[ROWS:])
    _, scores = trained.run()
    verdicts = decide(scores, named.numpy(), eps=1e-3, trusted=np.zeros(len(named), dtype=np.bool_))
    assert verdicts.corrupted[:60].mean() > 0.9
    assert np.array_equal(verdicts.corrupted[:60], verdicts.corrupted[ROWS:])


def test_a_group_stays_in_one_fold_and_a_class_of_one_group_is_known_to_every_head() -> None:
    features, labels, _ = blobs()
    groups = torch.arange(ROWS) // 10  # of mixed classes
    groups[labels == 3] = 999
    seen = Features.in_memory({"last": features.numpy()})
    trained = Heads(HeadData(seen, labels, CLASSES, labels < 0, groups), recipe(), TrainingSession())
    for group in groups.unique():
        assert len(trained.held_out_head[groups == group].unique(dim=0)) == 1
    assert not trained.held_out[labels == 3].any()


def test_a_class_of_one_image_is_not_called_wrong_for_that() -> None:
    features, labels, _ = blobs(wrong=0)
    labels = labels.clone()
    labels[labels == 3] = 2
    labels[0], features[0] = 3, features[0] + 30
    _, scores = heads(features, labels).run()
    verdicts = decide(scores, labels.numpy(), eps=1e-3, trusted=np.zeros(ROWS, dtype=np.bool_))
    assert not verdicts.corrupted[0]


def test_broken_numbers_are_named_with_epoch_and_step() -> None:
    features, labels, _ = blobs()
    with pytest.raises(TrainingError, match=r"not finite in epoch \d+, step \d+"):
        heads(features, labels, recipe(lr=1e38)).run()


def test_wrong_labels_are_found_and_ranked_first() -> None:
    features, labels, truth = blobs()
    _, scores = heads(features, labels).run()
    verdicts = decide(scores, labels.numpy(), eps=1e-3, trusted=np.zeros(ROWS, dtype=np.bool_))
    wrong = (labels != truth).numpy()
    assert (verdicts.corrupted == wrong).mean() > 0.97
    assert wrong[np.argsort(verdicts.rank)[:50]].all()
    assert abs(verdicts.corruption_probability.mean() - wrong.mean()) < 0.05
    along = verdicts.corruption_probability[np.argsort(verdicts.rank)]
    assert (np.diff(along) <= 1e-12).all()


def test_no_head_ever_learns_from_a_row_that_it_judges() -> None:
    features, labels, _ = blobs()
    seen: list[Tensor] = []
    trained = heads(features, labels)
    step = trained._update

    def watched(views: Tensor, grad: Tensor, active: Tensor, rate: float) -> None:
        slope = grad.view(CLASSES, trained.heads, -1).abs().sum(dim=0).T > 0  # (B, H)
        rows = torch.stack([(trained.features[:, 0] == view).all(dim=1).nonzero()[0, 0] for view in views])
        seen.append((slope & trained.held_out[rows]).any())
        step(views, grad, active, rate)

    trained._update = watched  # type: ignore[method-assign]
    trained.train_epoch(1)
    assert not torch.stack(seen).any()


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    features, labels, _ = blobs()
    first, again, other = (heads(features, labels, recipe(seed=seed)).run()[1].probs for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_head_without_a_row_in_the_batch_stays_bit_for_bit() -> None:
    features, labels, _ = blobs()
    trained = heads(features, labels)
    trained.train_epoch(1)
    before, moment = trained.weight.clone(), trained.momentum[0].clone()
    active = torch.ones(trained.heads, dtype=torch.bool)
    active[3] = False
    grad = torch.ones((CLASSES * trained.heads, 7))
    trained._update(trained.features[:7, 0], grad, active, 0.1)
    kept = trained.weight.view(CLASSES, trained.heads, -1)[:, 3], trained.momentum[0].view(CLASSES, trained.heads, -1)
    assert torch.equal(kept[0], before.view(CLASSES, trained.heads, -1)[:, 3])
    assert torch.equal(kept[1][:, 3], moment.view(CLASSES, trained.heads, -1)[:, 3])
    assert not torch.equal(trained.weight, before)


def test_a_step_is_that_of_torchs_own_sgd() -> None:
    features, labels, _ = blobs()
    trained = heads(features, labels)
    weight = trained.weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, nesterov=True, weight_decay=trained.recipe.weight_decay)
    active = torch.ones(trained.heads, dtype=torch.bool)
    for seed in range(3):
        grad = torch.randn((len(weight), 9), generator=torch.Generator().manual_seed(seed))
        trained._update(trained.features[:9, 0], grad, active, 0.1)
        weight.grad = grad @ trained.features[:9, 0]
        optimizer.step()
    assert torch.allclose(trained.weight, weight.detach(), atol=1e-5)


def test_classes_first_is_the_same_loss() -> None:
    logits = torch.randn((12, 5), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels, prior = torch.arange(12) % 5, torch.full((5,), 0.2, dtype=torch.float64)
    plain = training_loss(logits, labels, prior, 2.0)
    assert torch.allclose(training_loss(logits.T.contiguous(), labels, prior, 2.0, classes_first=True), plain)


def test_all_heads_as_one_layer_say_what_their_mean_says() -> None:
    features, labels, _ = blobs()
    trained = heads(features, labels)
    head, _ = trained.run()
    spoken = features[:, 0].float() @ head.weight.T + head.bias
    mean = trained.logits(slice(0, ROWS), 0).mean(dim=1).T
    assert torch.allclose(spoken, mean, atol=1e-3)


def test_a_projection_on_many_directions_loses_next_to_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn((600, 40), generator=generator) @ torch.randn(
        (40, 700), generator=generator
    )  # 40 true directions
    seen = Features.in_memory({"last": features[:, None].numpy()})
    projection = Projection.fit(seen, ("last",), classes=4, seed=0)
    shown = projection.project(seen, views=1)[:, 0]
    assert shown.shape == (600, 256)
    near, far = torch.cdist(features, features), torch.cdist(shown, shown)
    assert torch.corrcoef(torch.stack((near.flatten(), far.flatten())))[0, 1] > 0.999


def test_mirrored_views_count_only_where_they_are_harmless() -> None:
    features, labels, _ = blobs(views=2)
    assert heads(features, labels).run()[0].flip
    mirrored = features.clone()
    mirrored[:, 1] = mirrored[torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)), 1]  # of other images
    assert not heads(mirrored, labels).run()[0].flip


def test_trusted_rows_are_never_sieved_out() -> None:
    features, labels, _ = blobs()
    trusted = torch.zeros(ROWS, dtype=torch.bool)
    trusted[:20] = True
    trained = heads(features, labels, trusted=trusted)
    trained.run()
    assert (trained.keep | trained.held_out)[:20].all()


def test_a_stop_is_heard_and_sieving_everything_is_a_diagnosis() -> None:
    features, labels, _ = blobs()
    with pytest.raises(Stopped):
        heads(features, labels, stop=lambda: Stopped("asked", exit_code=143)).run()
    trained = heads(features, labels)
    with pytest.raises(TrainingError):
        trained.sieve(torch.zeros_like(trained.keep), 3)
