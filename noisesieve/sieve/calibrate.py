"""How sure the sieve is: a probability that a label is wrong, estimated without any truth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS, POOL_FLOOR

CALM, TORN = 0.1, 0.2  # doubt below which nothing changes, and above which the sieve is as gentle as the paper's
FEWEST = 20  # rows of either kind below which a mixture means nothing
ROUNDS = 100
MISTAKEN_AT = 0.245  # doubt at which the fitted law would call every suspect a mistake
MOST_MISTAKEN = 0.5  # about what was measured at the largest doubt: beyond it the law is not followed
FALL = 0.75  # how fast suspects become less certain along their ranking: on hard photos from .9 to .2, by a like law
CORNERS = 16  # of the broken line, on either side of the verdict
REACH = 16.0  # log-odds beyond this are one place
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # softer still, and hard pictures would explain wrong labels away
FITTED = 2_000_000  # probabilities that a transition is fitted to, at most
FIT_ROUNDS = 20
MANY_CLASSES = 500  # beyond them one share of right labels must do for all
BLOCK = 4096


def corruption_probability(label_probs: Tensor, corrupted: Tensor, order: Tensor, *, doubted: float = 0.0) -> Tensor:
    """P(label wrong), (N,) in [0, 1], never rising along `order` (most suspicious row first).

    A two-component Gaussian mixture on the log-odds of the given label, begun at the verdict's split, says it of rows
    that pass. Of the suspects a falling curve does, whose mean is the share that will prove wrong: `trust(doubted)`,
    where `doubted` is the share of suspects whose picture two opinions take for different things. A network that cannot
    say what they show cannot be sure what they do not. With too few rows of a kind it is 1 - f[y].
    """
    suspects = int(corrupted.sum())
    if min(suspects, len(corrupted) - suspects) < FEWEST:
        return _monotone(1 - label_probs, order)
    odds = torch.logit(label_probs.clamp(1e-12, 1 - 1e-12)).clamp(-REACH, REACH)
    place = torch.empty_like(label_probs)
    place[order] = (torch.arange(len(order)).to(place) + 0.5) / suspects  # of a suspect: 0 the worst, 1 the last
    falling = 1 - (1 + FALL) * (1 - trust(doubted)) * place.clamp(max=1.0) ** FALL
    return _monotone(torch.where(corrupted, falling, _posterior(odds, corrupted) * trust(doubted)), order)


def by_transition(probs: Tensor, labels: Tensor, order: Tensor) -> Tensor:
    """P(label wrong), (N,), of rows whose probabilities come from heads that never saw their labels.

    What the picture shows is f, sharpened or softened by one temperature; what it is called is drawn from a class-wise
    transition. Both are those under which the given labels are most likely, so that honest probabilities (these are: no
    head judged a row it had learnt) need no truth and no law. Never rising along `order`.
    """
    part = slice(None, None, -(-probs.numel() // FITTED))
    few, given = probs[part], labels[part]
    likely, best, transition = -math.inf, 1.0, _even(0.8, probs.shape[1])
    for heat in TEMPERATURES:
        found, fitted = _fit(few, given, heat)
        if found > likely:
            likely, best, transition = found, heat, fitted
    chance = []
    for some, named in zip(probs.split(BLOCK), labels.split(BLOCK), strict=True):
        shown = _softened(some, best)
        believed = shown.gather(1, named[:, None]).squeeze(1) * transition[named, named]
        chance.append(1 - believed / (shown * transition[:, named].T).sum(dim=1).clamp(min=1e-300))
    return _monotone(torch.cat(chance), order)


def _softened(probs: Tensor, heat: float) -> Tensor:
    return ((probs + POOL_FLOOR).log() / heat).softmax(dim=1)


def _fit(probs: Tensor, labels: Tensor, heat: float) -> tuple[float, Tensor]:
    """Log-likelihood of the labels and the transition (K, K) that maximises it, by expectation-maximisation.

    Each class starts from, and is drawn a little towards, the same share of right labels with the rest spread evenly.
    """
    shown, classes = _softened(probs, heat), probs.shape[1]
    transition = _even(0.8, classes)
    for _ in range(FIT_ROUNDS):
        joint = shown * transition[:, labels].T
        joint = joint / joint.sum(dim=1, keepdim=True).clamp(min=1e-300)
        counts = torch.zeros_like(transition).index_add_(1, labels, joint.T)
        right = min(float(counts.diagonal().sum() / len(labels)), 1 - 1 / len(labels))  # never: nothing is wrong
        counts = classes * _even(right, classes) + (counts if classes <= MANY_CLASSES else 0)
        transition = counts / counts.sum(dim=1, keepdim=True)
    likely = (shown * transition[:, labels].T).sum(dim=1).clamp(min=1e-300)
    return float(likely.log().mean()), transition


def _even(right: float, classes: int) -> Tensor:
    """A transition that keeps a label with probability `right` and else takes any other."""
    return torch.full((classes, classes), (1 - right) / (classes - 1), dtype=torch.float64).fill_diagonal_(right)


def knots(label_probs: Tensor, chances: Tensor, corrupted: Tensor) -> tuple[list[float], list[float]]:
    """P(label wrong) as a broken line over ln f[y], for rows that are scored later: the corners, left to right."""
    logs, corners = label_probs.clamp(min=1e-300).log(), []
    for group in (corrupted, ~corrupted):
        rows = torch.nonzero(group).flatten()
        for part in rows[logs[rows].argsort()].tensor_split(CORNERS):
            if len(part):
                corners.append((float(logs[part].mean()), float(chances[part].mean())))
    corners.sort()
    places, values = zip(*corners, strict=True)
    never_rising = torch.tensor(values).cummin(0).values
    return list(places), never_rising.tolist()


def on_knots(corners: tuple[list[float], list[float]], label_probs: Tensor) -> Tensor:
    """P(label wrong) of rows by such a line, (N,)."""
    logs = label_probs.clamp(min=1e-300).log()
    places, values = (torch.tensor(part, dtype=torch.float64) for part in corners)
    right = torch.searchsorted(places, logs).clamp(1, len(places) - 1)
    left = right - 1
    share = ((logs - places[left]) / (places[right] - places[left]).clamp(min=1e-12)).clamp(0.0, 1.0)
    return values[left] + share * (values[right] - values[left])


def doubt(torn: Tensor, suspects: Tensor) -> float:
    """The share of suspects over which two opinions are torn; none where there are no suspects."""
    return float(torn[suspects].double().mean()) if suspects.any() else 0.0


def gentle_eps(doubted: float, eps: float) -> float:
    """The log floor of the sieve in the loop: `eps` where two opinions of its first suspects agree, the paper's 1e-8
    where they often differ, between them in between.

    A dropped row is no longer learnt. Where the network cannot say what its suspects show, many of them are right but
    hard, and dropping them locks the mistake in; where it can, a small floor overlooks consistent second choices.
    """
    share = min(1.0, max(0.0, (doubted - CALM) / (TORN - CALM)))
    return float(math.exp((1 - share) * math.log(eps) + share * math.log(PAPER_EPS)))


def trust(doubted: float) -> float:
    """The share of suspects that will prove wrong, from how often two opinions of them differ.

    Opinions of one network share most of their mistakes: they differ far less often than they err, and the law is
    an empirical one, from six sets of ten classes: a doubt of .01 to .08 went with a precision of .98 to 1.00, .16 and
    .18 with .60 and .45. With two classes there is but one alternative, and no doubt to measure.
    """
    return 1 - min(MOST_MISTAKEN, (doubted / MISTAKEN_AT) ** 3)


def _posterior(odds: Tensor, corrupted: Tensor) -> Tensor:
    """The share of the lower component at each row, by expectation-maximisation.

    Both components have one spread, so that the posterior is a logistic curve: monotone, without odd tails.
    """
    member = corrupted.double() * 0.98 + 0.01
    for _ in range(ROUNDS):
        masses = (member.sum(), (1 - member).sum())
        means = ((member * odds).sum() / masses[0], ((1 - member) * odds).sum() / masses[1])
        squares = member * (odds - means[0]).square() + (1 - member) * (odds - means[1]).square()
        variance = squares.mean().clamp(min=1.0)
        middle = (means[0] + means[1]) / 2
        slope = (means[0] - means[1]) / variance
        updated = torch.sigmoid(slope * (odds - middle) + torch.log(masses[0] / masses[1]))
        settled = float((updated - member).abs().max()) < 1e-6
        member = updated.clamp(1e-6, 1 - 1e-6)
        if settled:
            break
    return member


def _monotone(values: Tensor, order: Tensor) -> Tensor:
    """The nearest-in-spirit sequence that never rises along `order`: midway between its two envelopes."""
    along = values[order]
    below = along.cummin(0).values
    above = along.flip(0).cummax(0).values.flip(0)
    result = torch.empty_like(values)
    result[order] = (below + above) / 2
    return result.clamp(0.0, 1.0)
