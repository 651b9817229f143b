"""The dynamic sieve between two epochs: score the rows, and keep those for the next epoch whose margin is negative."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.core.errors import TrainingError
from noisesieve.learn import second_opinion
from noisesieve.learn.distributed import Processes
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.score import Scorer
from noisesieve.learn.state import TrainingState
from noisesieve.learn.training_data import TrainingData
from noisesieve.sieve.formulas import margin, undecided

BLOCK = 65_536  # rows at a time


class EpochSieve:
    """Scores all rows of a training and sets v, which of them the next epoch keeps. Changes the training's state."""

    def __init__(
        self, state: TrainingState, recipe: NetworkRecipe, data: TrainingData, scorer: Scorer, processes: Processes
    ) -> None:
        self.state, self.recipe, self.scorer, self.processes = state, recipe, scorer, processes
        self.labels, self.trusted = data.labels, data.trusted

    @property
    def _averages(self) -> bool:
        """True if the probabilities after this epoch count."""
        state, recipe, schedule = self.state, self.recipe, self.state.schedule(self.recipe)
        if state.epoch == schedule.epochs:
            return True
        sieved = state.epoch >= schedule.sieve_start or schedule.sieve_start > schedule.epochs  # or no sieve at all
        return sieved and recipe.score_pass == "eval" and state.epoch > schedule.epochs - recipe.average_epochs

    def make_sums(self) -> None:
        """Make room for the sums of probabilities that the scoring after this epoch adds to."""
        if self._averages and self.state.prob_sum is None:
            self.state.prob_sum = self.scorer.zeros(len(self.labels))

    def score_rows(self) -> Tensor | None:
        """Score all rows if the schedule asks for it, and return their margins, (N,); None if it does not."""
        state, recipe, schedule = self.state, self.recipe, self.state.schedule(self.recipe)
        if state.epoch >= schedule.sieve_start:
            state.dropped = state.dropped + (~state.keep).long()
        everything = torch.arange(len(self.labels))
        if recipe.score_pass == "step":
            state.pending = state.keep.clone()  # for the counts; each step of the next epoch finds its own
        if self._averages:
            found = self.scorer.score(
                state, everything, reduce=self._all_scores, add_to=state.prob_sum, sum_name="prob_sum"
            )
            state.prob_count += 1
            if state.epoch == schedule.epochs:
                state.saved_model_scores = found[:, 1:].contiguous()
            return found[:, 0].contiguous()
        if not schedule.scores_after(state.epoch) or recipe.score_pass != "eval":
            return None
        if state.loop_eps is not None:
            return self.scorer.score(state, everything, reduce=self.margins_of)
        return self._choose_floor(everything)

    def _all_scores(self, probs: Tensor, rows: Tensor) -> Tensor:
        """Return (B, 3): the margin with the floor of the loop, and `label_scores`."""
        own, recipe = self.labels[rows], self.recipe
        scores = second_opinion.label_scores(probs, own, recipe.sieve_eps, exact=recipe.exact_label)
        return torch.cat((self.margins_of(probs, rows)[:, None], scores), dim=1)

    def _choose_floor(self, everything: Tensor) -> Tensor:
        """Score all rows, choose the floor of the loop from these scores, and return the margins with it."""
        state, mine = self.state, self.processes.part(everything)
        probs = self.scorer.zeros(len(everything))
        self.scorer.score(state, everything, reduce=self.margins_of, add_to=probs)
        blocks = list(zip(mine.split(BLOCK), probs.split(BLOCK), strict=True))
        suspects = torch.cat([self.margins_of(part.double(), rows) >= 0 for rows, part in blocks])
        disagree = second_opinion.disagreement(state, probs, self.labels[mine])
        both = self.processes.gather(torch.stack((suspects, disagree), dim=1), len(everything))
        state.loop_eps = second_opinion.choose_loop_eps(state, both[:, 1], both[:, 0], self.recipe)
        margins = torch.cat([self.margins_of(part.double(), rows) for rows, part in blocks])
        return self.processes.gather(margins, len(everything))

    def apply(self, margins: Tensor | None) -> tuple[int, int]:
        """Sieve by the margins of all rows, or by those of the training batches. Returns flagged and undecided rows."""
        state = self.state
        if margins is not None:
            state.pending = margins < 0
            if self.processes.is_leader:
                state.margin_history = [*state.margin_history, margins.float()]
        if state.pending is None:
            return 0, 0
        if state.epoch == self.recipe.divide_at:
            state.early_clean = state.pending | self.trusted
        if state.epoch != state.schedule(self.recipe).epochs:
            self.keep(state.pending)
        return int((~state.pending).sum()), 0 if margins is None else undecided(margins)

    def margins_of(self, probs: Tensor, rows: Tensor) -> Tensor:
        """Return the margins (B,) of probabilities (B, K), with the floor of the loop."""
        eps = self.state.loop_eps or self.recipe.loop_eps
        return margin(probs, self.labels[rows], eps, exact=self.recipe.exact_label)

    def keep(self, clean: Tensor) -> None:
        """Set v for the next epoch. Raises an error if every row would be dropped."""
        state = self.state
        if state.epoch + 1 < state.schedule(self.recipe).sieve_start:
            return
        clean = clean | self.trusted
        if not clean.any():
            raise TrainingError(
                f"Every row was dropped after epoch {state.epoch}: no given label passes the threshold.",
                "Lengthen --warmup-epochs, lower --beta, or check that labels and images belong together.",
            )
        state.keep = clean

    def add_batch(self, logits: Tensor, batch: Tensor) -> None:
        """--score-pass train: set v for the next epoch from the augmented batch."""
        state = self.state
        if state.pending is None:
            state.pending = state.keep.clone()  # rows in no batch keep their v
        state.pending[batch] = self.clean_in_batch(logits, batch)

    def keep_batch(self, logits: Tensor, batch: Tensor) -> None:
        """--score-pass step: set v of a batch for the step that computed these logits, as in the authors' code."""
        state = self.state
        if state.epoch >= state.schedule(self.recipe).sieve_start:
            state.keep[batch] = self.clean_in_batch(logits, batch) | self.trusted[batch]

    def clean_in_batch(self, logits: Tensor, batch: Tensor) -> Tensor:
        """Return which rows of a batch pass the sieve, (B,) bool, from the logits of this rank's part of it."""
        processes = self.processes
        mine = processes.rows_of_rank(batch)
        margins = self.margins_of(logits.detach().cpu().double().softmax(dim=1), mine)
        clean = torch.zeros(len(batch))
        if processes.rank < len(batch):
            clean[processes.rank :: processes.size] = (margins < 0).float()
        return processes.sum(clean) > 0
