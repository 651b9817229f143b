"""The figures of sieve/README.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from noisesieve.learn.frozen import choose, groups, projection
from noisesieve.learn.plan import plan
from noisesieve.learn.presets import CE_DECAY
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.report import intervals
from noisesieve.retrain.retrain_plan import plan_retraining
from noisesieve.retrain.retrain_settings import RetrainOptions
from noisesieve.sieve import calibrate, noise_model, ranking

README = Path(calibrate.__file__).with_name("README.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in README.splitlines()
    if line.startswith("|") and len(cells := [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]) > 2
}


def preset(name: str) -> NetworkRecipe:
    made = plan(TrainingOptions(preset=name), rows=50_000, classes=10, longest_sides=np.array([32]), device="cpu")
    assert isinstance(made, NetworkRecipe)
    return made


PAPER, CODE = preset("cifar"), preset("cifar-code")


def test_the_optimizers_are_those_of_the_table() -> None:
    assert (PAPER.momentum, PAPER.weight_decay) == (0.9, 5e-4)
    assert ROWS["optimizer"][2].startswith("momentum 0.9, decay 5e-4 (")
    assert ROWS["optimizer"][2].endswith(f"(`cifar-code`: {CODE.momentum:g}, {CODE.weight_decay:g})")
    assert (PAPER.lr_over_beta, CODE.lr_over_beta) == (False, True)


@pytest.mark.parametrize(("recipe", "column"), [(PAPER, 0), (CODE, 1)])
def test_beta_and_the_first_sieved_epoch_are_those_of_the_table(recipe: NetworkRecipe, column: int) -> None:
    schedule = Schedule(recipe, recipe.warmup_epochs)
    text = re.split(r"\(`cifar-code`: ", ROWS["β in epochs 11, 12, 20, 40"][2])[column]
    figures = [float(number) for number in re.findall(r"\d*\.?\d+", text)]
    assert figures == [round(schedule.beta(epoch), 3) for epoch in (11, 12, 20, 40)]
    first = re.findall(r"\d+", ROWS["first sieved epoch"][2])[column]
    assert schedule.sieve_start == int(first)


def test_the_codes_learning_rate_is_divided_by_one_plus_beta() -> None:
    schedule, paper = Schedule(CODE, CODE.warmup_epochs), Schedule(PAPER, PAPER.warmup_epochs)
    for epoch in range(1, 101):  # restated: alpha_plan[epoch] / (1 + beta[epoch])
        beta = 0.0 if epoch <= 11 else min(2.0, 2.0 * (epoch - 11) / 29)
        assert schedule.beta(epoch) == pytest.approx(beta)
        assert schedule.learning_rate(epoch, 0.3) == pytest.approx((0.1 if epoch <= 50 else 0.01) / (1 + beta))
        assert paper.learning_rate(epoch, 0.3) == pytest.approx(0.1 if epoch <= 50 else 0.01)


def test_the_floors_and_passes_of_the_papers_presets() -> None:
    for name in ("paper", "cifar", "cifar-code", "clothing1m"):
        recipe = preset(name)
        assert (recipe.loop_eps, recipe.sieve_eps, recipe.exact_label) == (1e-8, 1e-8, True)
    assert (CODE.score_pass, CODE.recount_prior, CODE.divide_at) == ("step", True, 41)
    assert (PAPER.score_pass, PAPER.recount_prior, PAPER.divide_at) == ("eval", False, 40)
    plain = plan(TrainingOptions(weights="none"), rows=500, classes=10, longest_sides=np.array([32]), device="cpu")
    assert not plain.exact_label
    assert "norm of 5" in ROWS["gradient clipping"][2]
    assert PAPER.clip_norm == 5


def test_the_second_phase_is_that_of_the_table() -> None:
    row = ROWS["unlabelled batch and weight at noise .2 / .4 / .6"][2]
    batches, weights = row.split(": ")[1].split("; ")
    made = [
        plan_retraining(PAPER, RetrainOptions(), preset="cifar", labelled=1000 - n, unlabelled=n, flip=True)
        for n in (200, 400, 600)
    ]
    assert [int(number) for number in batches.split(", ")] == [recipe.unlabelled_batch for recipe in made]
    assert [float(number) for number in weights.split(", ")] == [round(recipe.weight, 2) for recipe in made]
    assert ROWS["peak rate, warm-up"][2] == f"{made[0].lr:g}, {made[0].warmup_epochs:g} epochs".replace("0.03", ".03")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("`noise_model.STRENGTHS`", noise_model.STRENGTHS),
        ("`noise_model.ROUNDS`, `FIRST_RATE`", (noise_model.ROUNDS, noise_model.FIRST_RATE)),
        ("`ranking.CE_WEIGHT`", (ranking.CE_WEIGHT,)),
        ("`presets.CE_DECAY`", (CE_DECAY,)),
        ("`groups.ALIKE`", groups.ALIKE),
        ("`choose.LEAD`", (choose.LEAD,)),
        ("`choose.RIDGE`, `ROWS`, `CLASSES`", (choose.RIDGE, choose.ROWS, choose.CLASSES)),
        (
            "`projection.DIRECTIONS`, `FIT_ROWS`",
            (projection.DIRECTIONS, projection.MOST_DIRECTIONS, projection.FIT_ROWS),
        ),
        ("`calibrate.AGREE_BELOW`, `DISAGREE_ABOVE`", (calibrate.AGREE_BELOW, calibrate.DISAGREE_ABOVE)),
        (
            "`intervals.OVERRATED…`, `UNDERRATED…`",
            (intervals.OVERRATED, intervals.OVERRATED_LEAST, intervals.UNDERRATED, intervals.UNDERRATED_LEAST),
        ),
    ],
)
def test_constants_are_those_of_the_table(name: str, values: tuple[float, ...]) -> None:
    found = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d*\.?\d+", ROWS[name][0])]
    assert found == [pytest.approx(value) for value in values]
