"""The paper's statements, held in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from noisesieve.learn.losses import training_loss
from noisesieve.sieve.formulas import (
    apply_threshold,
    entropy,
    floored_log_loss,
    largest_beta,
    margin,
    own_weight,
    regularizer,
)

DOUBLE = torch.float64


def random_case(classes: int, scale: float, rows: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=g, dtype=DOUBLE) * scale
    labels = torch.randint(classes, (rows,), generator=g)
    return logits.softmax(1), labels


def uniform(classes: int) -> Tensor:
    return torch.full((classes,), 1 / classes, dtype=DOUBLE)


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 60.0])
@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1e-3, 1.0, 1e6])
def test_theorem_2_a_label_above_random_guess_is_clean(classes: int, scale: float, eps: float) -> None:
    probs, labels = random_case(classes, scale, seed=classes)
    above = probs.gather(1, labels[:, None]).squeeze(1) > 1 / classes
    corrupted = apply_threshold(probs, labels, prior=uniform(classes), beta=2, eps=eps).corrupted
    assert not (above & corrupted).any()


def test_the_verdict_depends_on_neither_beta_nor_prior() -> None:
    probs, labels = random_case(10, 3.0)
    prior = torch.rand(10, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    one = apply_threshold(probs, labels, prior=uniform(10), beta=0.0, eps=1e-8)
    two = apply_threshold(probs, labels, prior=prior / prior.sum(), beta=20.0, eps=1e-8)
    assert torch.equal(one.corrupted, two.corrupted)
    assert torch.equal(one.margin, two.margin)
    assert not torch.allclose(one.threshold, two.threshold)


def test_the_verdict_is_invariant_to_a_logit_shift_and_follows_a_permutation_of_classes() -> None:
    g = torch.Generator().manual_seed(2)
    logits = torch.randn(300, 7, generator=g, dtype=DOUBLE) * 4
    labels = torch.randint(7, (300,), generator=g)
    order = torch.randperm(7, generator=g)
    plain = margin(logits.softmax(1), labels, 1e-3)
    shifted = margin((logits + 17.0).softmax(1), labels, 1e-3)
    permuted = margin(logits[:, order].softmax(1), order.argsort()[labels], 1e-3)
    assert torch.equal(plain >= 0, shifted >= 0)
    torch.testing.assert_close(plain, permuted, rtol=0, atol=1e-12)


def test_with_two_classes_the_verdict_is_the_argmax() -> None:
    probs, labels = random_case(2, 3.0, rows=2000)
    corrupted = apply_threshold(probs, labels, prior=uniform(2), beta=2, eps=1e-8).corrupted
    assert torch.equal(corrupted, probs.argmax(1) != labels)


@pytest.mark.parametrize("classes", [2, 5, 100])
def test_with_a_huge_eps_the_rule_is_one_over_k(classes: int) -> None:
    probs, labels = random_case(classes, 2.0, rows=3000, seed=3)
    chosen = probs.gather(1, labels[:, None]).squeeze(1)
    clear = (chosen - 1 / classes).abs() > 1e-4
    corrupted = apply_threshold(probs, labels, prior=uniform(classes), beta=2, eps=1e6).corrupted
    assert torch.equal(corrupted[clear], (chosen <= 1 / classes)[clear])


def test_a_larger_eps_flags_more() -> None:
    probs, labels = random_case(10, 4.0, rows=5000)
    flagged = [int((margin(probs, labels, eps) >= 0).sum()) for eps in (1e-8, 1e-3, 1.0)]
    assert flagged[0] < flagged[1] < flagged[2]


def test_a_tie_is_corrupted() -> None:
    probs = torch.full((1, 4), 0.25, dtype=DOUBLE)
    assert apply_threshold(probs, torch.tensor([1]), prior=uniform(4), beta=2, eps=1e-8).corrupted.item()


def test_the_reported_terms_add_up_for_every_eps() -> None:
    probs, labels = random_case(10, 20.0)
    for eps in (1e-8, 1e-3, 1.0):
        d = apply_threshold(probs, labels, prior=uniform(10), beta=2.0, eps=eps)
        torch.testing.assert_close(d.regularized_loss, d.loss + d.regularizer)
        torch.testing.assert_close(d.margin, d.regularized_loss - d.threshold, rtol=0, atol=1e-9)
        assert torch.equal(d.corrupted, d.margin >= 0)


def test_a_probability_of_exactly_zero_is_floored() -> None:
    probs = torch.tensor([[1.0, 0.0, 0.0]], dtype=DOUBLE)
    d = apply_threshold(probs, torch.tensor([1]), prior=uniform(3), beta=2.0, eps=1e-8)
    assert torch.isfinite(torch.stack([d.loss, d.regularizer, d.threshold, d.margin])).all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0])
def test_the_gradient_of_the_training_loss_is_the_closed_form(beta: float) -> None:
    g = torch.Generator().manual_seed(4)
    logits = (torch.randn(50, 10, generator=g, dtype=DOUBLE) * 8).requires_grad_()
    labels = torch.randint(10, (50,), generator=g)
    prior = torch.rand(10, generator=g, dtype=DOUBLE)
    prior /= prior.sum()
    training_loss(logits, labels, prior, beta).sum().backward()
    f = logits.detach().softmax(1)
    r = f / (f + 1e-8)
    one_hot = torch.eye(10, dtype=DOUBLE)[labels]
    expected = (f - one_hot) + beta * (prior * r - f * (prior * r).sum(1, keepdim=True))
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-10)


def test_the_regularizer_is_bounded_where_an_exact_log_would_not_be() -> None:
    logits = torch.tensor([[1000.0, 0.0]], dtype=DOUBLE)
    loss = training_loss(logits, torch.tensor([0]), uniform(2), 2.0)
    assert loss.item() == pytest.approx(2 * 0.5 * torch.tensor(1e-8, dtype=DOUBLE).log().item(), rel=1e-6)


def test_the_loss_is_computed_in_float32_from_half_precision_logits() -> None:
    logits = torch.tensor([[40.0, 0.0]], dtype=torch.float16)
    loss = training_loss(logits, torch.tensor([1]), torch.tensor([0.5, 0.5]), 2.0)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()


def random_world(k: int, places: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P(X, Y) over finite places, T(x) by place, and f: all random."""
    g = torch.Generator().manual_seed(seed)
    joint = torch.rand(places, k, generator=g, dtype=DOUBLE)
    joint /= joint.sum()
    transition = torch.rand(places, k, k, generator=g, dtype=DOUBLE)
    transition /= transition.sum(2, keepdim=True)
    f = torch.randn(places, k, generator=g, dtype=DOUBLE).softmax(1)
    return joint, transition, f, -f.log()


@pytest.mark.parametrize("seed", range(5))
def test_theorem_3_the_loss_decouples_into_three_terms(seed: int) -> None:
    k, beta = 4, 1.7
    joint, t, _, loss = random_world(k, 6, seed)
    noisy_joint = torch.einsum("xi,xij->xj", joint, t)
    noisy_prior = noisy_joint.sum(0)
    left = (noisy_joint * loss).sum() - beta * (joint.sum(1)[:, None] * loss * noisy_prior).sum()
    p_y = joint.sum(0)
    given = joint / p_y  # P(x | y)
    t_mean = torch.einsum("xi,xij->ij", given, t)
    t_low = t_mean.diagonal().min()
    delta = t_mean.diagonal() - t_low
    term_1 = t_low * (joint * loss).sum()
    term_2 = sum(delta[j] * p_y[j] * (given[:, j] * loss[:, j]).sum() for j in range(k))
    term_3 = torch.tensor(0.0, dtype=DOUBLE)
    for i, j in itertools.product(range(k), range(k)):
        u = t[:, i, j] - (t_mean[j, j] if i == j else 0)
        term_3 += p_y[i] * (given[:, i] * (u - beta * noisy_prior[j]) * loss[:, j]).sum()
    assert abs((left - (term_1 + term_2 + term_3)).item()) < 1e-12


def expected_loss_at(f: Tensor, flips: Tensor, prior: Tensor, beta: float) -> Tensor:
    """E over noisy labels at one place of l + CR, with the floored log, for f (M, K)."""
    losses = floored_log_loss(f.log(), 1e-8)
    return losses @ flips - beta * (losses @ prior)


def test_theorem_4_inside_the_window_the_clean_vertex_wins_and_above_it_some_place_fails() -> None:
    k = 3
    t = torch.tensor(  # two places a class; rows are T(x)[clean]
        [
            [[0.6, 0.25, 0.15], [0.7, 0.15, 0.15]],
            [[0.2, 0.6, 0.2], [0.25, 0.55, 0.2]],
            [[0.1, 0.2, 0.7], [0.2, 0.2, 0.6]],
        ],
        dtype=DOUBLE,
    )
    p_y = torch.tensor([0.4, 0.3, 0.3], dtype=DOUBLE)
    prior = torch.einsum("i,ixj->j", p_y, t) / 2
    t_mean = t.mean(1)
    lower = max(
        ((t[i, x, j] - (t_mean[j, j] if i == j else 0)) / prior[j]).item()
        for i, x, j in itertools.product(range(k), range(2), range(k))
    )
    upper = min(
        ((t[i, x, i] - t[i, x, j]) / (prior[i] - prior[j])).item()
        for i, x, j in itertools.product(range(k), range(2), range(k))
        if prior[i] > prior[j]
    )
    assert lower < upper
    vertices = torch.eye(k, dtype=DOUBLE)
    simplex = torch.distributions.Dirichlet(torch.full((k,), 0.5, dtype=DOUBLE)).sample((5000,))

    def clean_wins(i: int, x: int, beta: float) -> bool:
        best = expected_loss_at(vertices, t[i, x], prior, beta)
        others = torch.cat([best[torch.arange(k) != i], expected_loss_at(simplex, t[i, x], prior, beta)])
        return bool((best[i] < others).all())

    for beta in (lower * 1.001, (lower + upper) / 2, upper * 0.999):
        assert all(clean_wins(i, x, beta) for i, x in itertools.product(range(k), range(2)))
    assert not all(clean_wins(i, x, upper * 1.01) for i, x in itertools.product(range(k), range(2)))


@pytest.mark.parametrize(("beta", "perfect"), [(4.8, True), (0.5, False)])
def test_corollary_1_a_proper_beta_divides_separable_clusters_without_error(beta: float, perfect: bool) -> None:
    """Asymmetric noise of 40 % on ten clusters: the lower bound of beta is 4; a logit table has infinite capacity."""
    k = 10
    flips = torch.eye(k, dtype=DOUBLE) * 0.6 + torch.roll(torch.eye(k, dtype=DOUBLE), 1, dims=1) * 0.4
    prior = flips.mean(0)
    logits = torch.zeros(k, k, dtype=DOUBLE, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=1.0)
    labels = torch.arange(k)
    for step in range(3000):
        optimizer.zero_grad()
        now = beta * min(1.0, max(0.0, (step - 300) / 300))
        losses = torch.stack([training_loss(logits, (labels + s) % k, prior, now) for s in (0, 1)])
        (0.6 * losses[0] + 0.4 * losses[1]).sum().backward()
        optimizer.step()
    probs = logits.detach().softmax(1)
    clean = margin(probs, labels, 1e-8) < 0
    flipped = margin(probs, (labels + 1) % k, 1e-8) < 0
    hits = 0.6 * clean.double().sum()
    precision = hits / (hits + 0.4 * flipped.double().sum())
    recall = clean.double().mean()
    f_score = 2 * precision * recall / (precision + recall)
    assert f_score == 1.0 if perfect else f_score < 0.9


def test_peer_loss_over_all_pairs_is_the_loss_less_its_prior_mean() -> None:
    probs, labels = random_case(5, 2.0, rows=60)
    losses = floored_log_loss(probs.log(), 1e-8)
    own = losses.gather(1, labels[:, None]).squeeze(1)
    peers = losses[:, labels]  # (N, N): row n1 under the label of n2
    prior = torch.bincount(labels, minlength=5).double() / len(labels)
    torch.testing.assert_close((own[:, None] - peers).mean(), (own - losses @ prior).mean(), rtol=0, atol=1e-12)


def test_cr_pushes_harder_than_entropy() -> None:
    p = torch.linspace(1e-6, 0.5 - 1e-6, 100_000, dtype=DOUBLE)
    assert (torch.log(1 / p - 1) < 1 / p - 1 / (1 - p)).all()


@pytest.mark.parametrize("beta", [0.4, 1.0, 2.0])
def test_the_weight_of_the_own_label_is_what_the_loss_gives_it(beta: float) -> None:
    prior = torch.tensor([0.9, 0.06, 0.04], dtype=DOUBLE)
    logs = torch.tensor([[-0.3, -2.0, -2.5]] * 3, dtype=DOUBLE, requires_grad=True)
    labels = torch.arange(3)
    losses = -logs.gather(1, labels[:, None]).squeeze(1) + regularizer(-logs, prior, beta)
    losses.sum().backward()
    assert logs.grad is not None
    for label in range(3):
        assert -logs.grad[label, label].item() == pytest.approx(own_weight(prior[label].item(), beta), abs=1e-12)
    assert own_weight(0.9, largest_beta(0.9)) == pytest.approx(0.5, abs=1e-12)


def test_the_entropy_is_zero_for_certainty_and_largest_for_none() -> None:
    probs = torch.tensor([[1.0, 1e-300, 1e-300], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.25, 0.25]], dtype=DOUBLE)
    found = entropy(probs.log())
    expected = torch.tensor([0.0, math.log(3), 1.5 * math.log(2)], dtype=DOUBLE)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("scale", [1.0, 10.0, 60.0])
def test_theorem_2_with_the_exact_label_term_holds_above_one_over_k_plus_eps(classes: int, scale: float) -> None:
    probs, labels = random_case(classes, scale, seed=classes)
    for eps in (1e-8, 1e-3, 0.1):
        above = probs.gather(1, labels[:, None]).squeeze(1) > 1 / classes + eps
        terms = apply_threshold(probs, labels, prior=uniform(classes), beta=2, eps=eps, exact=True)
        assert not (above & terms.corrupted).any()
        assert torch.allclose(terms.regularized_loss - terms.threshold, terms.margin, atol=1e-9)


def test_the_exact_term_is_the_authors_and_only_ever_flags_more() -> None:
    logits = torch.randn((5000, 100), generator=torch.Generator().manual_seed(0), dtype=DOUBLE) * 10
    labels = torch.arange(5000) % 100
    probs = logits.softmax(dim=1)
    own = -logits.log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)  # restated: F.cross_entropy
    alpha = -(probs + 1e-8).log().mean(dim=1)  # and the mean of the floored losses
    floored, exact = margin(probs, labels, 1e-8), margin(probs, labels, 1e-8, exact=True)
    assert torch.allclose(exact, own - alpha, atol=1e-9)
    assert not ((floored >= 0) & (exact < 0)).any()
    assert int(((floored >= 0) != (exact >= 0)).sum()) > 0


def test_a_probability_of_zero_has_a_finite_exact_loss() -> None:
    probs = torch.tensor([[0.0, 1.0]], dtype=DOUBLE)
    terms = apply_threshold(probs, torch.tensor([0]), prior=uniform(2), beta=2.0, eps=1e-8, exact=True)
    assert torch.isfinite(terms.loss).all()
    assert terms.corrupted.all()
