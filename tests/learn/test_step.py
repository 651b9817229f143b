"""A training step waits for nothing and copies twice: proven on a device without data, and with several processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from noisesieve.core.errors import TrainingError
from noisesieve.learn import batch_loader
from noisesieve.learn.batch_loader import BatchLoader, StepPlan
from noisesieve.learn.device import Precision, read_behind
from noisesieve.learn.distributed import Processes, TrainingSession
from noisesieve.learn.frozen.features import Features
from noisesieve.learn.frozen.head_data import HeadData
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.loop import Loop
from noisesieve.learn.losses import training_loss
from noisesieve.learn.networks import depths
from noisesieve.learn.networks.backbones import build, depths_of
from noisesieve.learn.recipes import HeadRecipe, RetrainRecipe
from noisesieve.learn.score import mean_probabilities
from noisesieve.learn.update import LOOK_STEPS
from noisesieve.retrain import loop as retrain_loop
from noisesieve.retrain.data import RetrainData
from tests.conftest import REPOSITORY
from tests.learn.test_loop import RECIPE, training_data, weights
from tests.learn.test_loop import loop as made_loop

META = torch.device("meta")


class Copies(TorchDispatchMode):
    """Counts what is copied between devices. Reading a number of a meta tensor raises by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += func._schema.name == "aten::_to_copy" and args[0].device != out.device
        return out


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """Processes of one rank on a device without data: every read of a value is an error."""
    monkeypatch.setattr(depths.torch, "autocast", lambda *a, **k: contextlib.nullcontext())
    monkeypatch.setattr(batch_loader.BatchLoader, "_statistics", lambda self, rows: (torch.zeros(3), torch.ones(3)))
    return Processes(device=META)


def loop_on_meta(processes: Processes, recipe: Any = RECIPE) -> Loop:
    made = Loop(training_data(), recipe, TrainingSession(processes=processes), checkpoints=None)
    made.loader.mean, made.loader.std = torch.zeros(3, device=META), torch.ones(3, device=META)
    made.state.model.train()
    made.state.epoch_facts = {"loss": 0.0, "kept": 0, "skipped": 0, "seconds": 0.0}
    made.updater.begin([0.0])
    return made


@pytest.mark.parametrize("changes", [{}, {"mixup": 1.0}, {"score_pass": "train"}, {"beta": 2.0, "flip": True}])
def test_a_step_of_training_reads_nothing_and_copies_images_and_numbers(
    on_meta: Processes, changes: dict[str, Any]
) -> None:
    made = loop_on_meta(on_meta, replace(RECIPE, **changes))
    made.state.epoch = 5  # beta is at work
    batches = [torch.arange(start, start + 16) for start in (0, 16, 32)]
    with Copies() as copies:
        for plan, images, columns in made.loader.steps(made.plans(batches)):
            made.train_step(plan, images, columns, 3)
            made.state.step += 1
    assert copies.count == 2 * len(batches)
    assert made.updater.look_steps == LOOK_STEPS


@pytest.mark.parametrize("target", ["batch", "current", "ema"])
def test_a_step_of_retraining_reads_nothing_and_copies_images_and_numbers(
    on_meta: Processes, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torchvision sends the parameters of some operations to the device: its policy is left out here.
    monkeypatch.setattr("noisesieve.retrain.strong_augment._policy", lambda name: lambda images: images)
    given = training_data()
    statistics = ([120.0] * 3, [60.0] * 3)
    rows = RetrainData(given.pixels, given.labels, torch.arange(40), torch.arange(40, 60), 3, statistics)
    recipe = RetrainRecipe(
        backbone="resnet8",
        image_size=8,
        batch_size=16,
        lr=0.05,
        epochs=2,
        warmup_epochs=0.0,
        unlabelled_batch=8,
        weight=0.5,
        target=target,
        start="scratch",
        policy="autoaugment",
        labelled_view="strong",
        flip=True,
    )
    session = TrainingSession(processes=on_meta)
    made = retrain_loop.RetrainLoop(rows, recipe, session, name="x", test_set=None, checkpoints=None)
    made.updater.begin([0.0, 0.0])
    batches, others = [torch.arange(16), torch.arange(16, 32)], [torch.arange(40, 48), torch.arange(48, 56)]
    with Copies() as copies:
        steps = zip(
            made.loader.steps(made._plans(batches, ("strong",), 1)),
            made.loader.steps(made._plans(others, ("weak", "strong"), 2)),
            strict=True,
        )
        for own, other in steps:
            made._step(0.05, own, other, made._teacher(), 2)
    assert copies.count == 2 * 2 * 2  # images and numbers, of labelled and of other rows, twice


def test_the_step_that_was_not_finite_is_named_when_the_loop_looks() -> None:
    made = made_loop()
    made.state.epoch_facts = {"loss": 0.0, "kept": 0, "skipped": 0}
    made.updater.begin([0.0])
    before = weights(made)
    logits = torch.zeros(4, requires_grad=True)
    for step, value in enumerate((1.0, float("nan"), 1.0)):
        made.state.step = step
        parameter = next(made.state.model.parameters())
        loss = parameter.sum() * 0 + logits.sum() * 0 + value
        made.updater.step(loss, [loss], rate=0.1, steps=3)
    with pytest.raises(TrainingError, match="epoch 1, step 2"):
        made.updater.look(advice="Lower it.")
    assert len(before) == len(weights(made))


def test_no_checkpoint_is_written_after_a_step_that_was_not_finite(tmp_path: Path) -> None:
    from noisesieve.learn.checkpoint import Checkpoints

    store = Checkpoints(tmp_path, identity="x", warn=print)
    made = made_loop(recipe=replace(RECIPE, lr=1e38), checkpoints=store)
    made.updater.look_steps = 1000
    with pytest.raises(TrainingError):
        made.run()
    store.wait()
    assert not list(tmp_path.glob("*.ckpt"))


def test_the_thread_that_reads_ahead_yields_the_same_steps_and_passes_errors_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    given = training_data()
    loader = BatchLoader(given.pixels, torch.device("cpu"))
    made = made_loop()
    batches = [torch.arange(start, start + 10) for start in range(0, 60, 10)]
    plain = [(images.clone(), columns) for _, images, columns in loader.steps(made.plans(batches))]

    class Ahead(BatchLoader):
        def _to_device(self, images: Tensor) -> Tensor:
            return images

        def _columns(self, plan: StepPlan, numbers: Tensor) -> dict[str, Tensor]:
            return dict(zip(plan.names, numbers, strict=True))

    ahead = Ahead(given.pixels, torch.device("cpu"))
    ahead._device = torch.device("cuda")
    found = [(images.clone(), columns) for _, images, columns in ahead.steps(made.plans(batches))]
    for (images, columns), (others, other_columns) in zip(plain, found, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(columns["label"], other_columns["label"])

    def failing() -> Iterator[StepPlan]:
        yield from list(made.plans(batches))[:2]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(ahead.steps(failing()))


def test_half_precision_is_for_the_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions run in bfloat16 under autocast, and the last layer and the loss in float32."""
    made = made_loop()
    kinds: list[tuple[str, torch.dtype]] = []
    for name, module in made.state.model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda m, i, out, name=name: kinds.append((name, out.dtype)))
    made.state.precision = Precision(torch.device("cpu"))
    made.state.precision.dtype = torch.bfloat16
    with made.state.precision.autocast():
        logits = made.state.model(torch.zeros((2, 3, 8, 8)))
    assert logits.dtype == torch.float32
    assert dict(kinds)["fc"] == torch.float32
    assert {kind for name, kind in kinds if name != "fc"} == {torch.bfloat16}


def test_the_average_is_timms_with_a_warm_up() -> None:
    from timm.utils import ModelEmaV3

    made = made_loop()
    model, state, steps = made.state.model, made.state, 50
    timms = ModelEmaV3(model, decay=1 - 1 / steps, use_warmup=True, warmup_gamma=9, warmup_power=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        for parameter in model.parameters():
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.01)
        state.updates += 1
        state.update_average(steps, 1.0)
        timms.update(model, step=state.updates + 2)
    for ours, theirs in zip(state.average.parameters(), timms.module.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


HEADS = HeadRecipe(
    backbone="x",
    image_size=0,
    batch_size=16,
    lr=0.1,
    depths=("x",),
    epochs=6,
    warmup_epochs=2,
    ramp_epochs=1,
    sieve_start=4,
    folds=3,
    head_seeds=2,
    lr_schedule="cosine",
)


def heads_on_meta(processes: Processes) -> Heads:
    """Heads on features without values."""
    rng = np.random.default_rng(0)
    features = Features.in_memory({"x": rng.normal(size=(60, 2, 8)).astype(np.float16)})
    labels = torch.arange(60) % 3
    data = HeadData(features, labels, 3, torch.zeros(60, dtype=torch.bool))
    made = Heads(data, HEADS, TrainingSession(processes=processes))
    made.features, made.flip = torch.zeros(made.features.shape, device=META), True
    return made


def test_a_step_of_the_heads_reads_nothing_and_copies_once(on_meta: Processes) -> None:
    made = heads_on_meta(on_meta)
    batch = torch.arange(16)
    with Copies() as copies:
        views, given, weights = made._inputs(batch, torch.Generator())
        logits = (made.weight @ views.T + made.bias).view(3, -1).requires_grad_()
        each = training_loss(logits, given.repeat(6), torch.ones(3, device=META) / 3, 2.0, classes_first=True)
        loss = (each.view(6, -1) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        made._update(views, grad.reshape(-1, 16), None, 0.1)
    assert copies.count == 1


def test_scores_of_heads_are_computed_on_the_device_and_not_their_logits(on_meta: Processes) -> None:
    made = heads_on_meta(on_meta)
    for _, found in made._launched(sieve=True):
        assert all(tensor.device == META for tensor in found)
        assert max(tensor.numel() for tensor in found) <= 60 * 6  # never (N, H, K)


def test_a_result_is_read_after_the_next_was_launched() -> None:
    said: list[str] = []

    class Result:
        def __init__(self, number: int) -> None:
            self.number = number
            said.append(f"launch {number}")

        def cpu(self) -> int:
            said.append(f"read {self.number}")
            return self.number

    found = [values[0] for _, values in read_behind((i, (Result(i),)) for i in range(3))]  # type: ignore[misc]
    assert found == [0, 1, 2]
    assert said == ["launch 0", "launch 1", "read 0", "launch 2", "read 1", "read 2"]


@pytest.mark.parametrize("name", ["resnet8", "resnet34", "resnet50", "timm/mobilenetv3_small_050", "timm/vgg11"])
def test_scores_and_features_are_computed_on_a_gpu_without_reading_it(name: str) -> None:
    size = 32 if name == "resnet8" else 224
    with FakeTensorMode(), torch.device("cuda"):
        network = build(name, classes=4, image_size=size, seed=0, depths=tuple(d.name for d in depths_of(name)))
        images = torch.empty((2, 3, size, size))
        network.eval()
        with torch.no_grad():
            precision = Precision(torch.device("cpu"))
            probs = mean_probabilities(network, [images, images.flip(3)], precision)
            features = network.depth_features(images)
    assert (probs.device.type, probs.dtype, tuple(probs.shape)) == ("cuda", torch.float64, (2, 4))
    assert {value.device.type for value in features.values()} == {"cuda"}


# Several processes.

WORKER = """
import json, sys
from dataclasses import replace
import torch
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.loop import Loop
from noisesieve.core.errors import Stopped
from tests.learn.test_loop import RECIPE, training_data
folder, stop_after, recipe = sys.argv[1], int(sys.argv[2]), replace(RECIPE, **json.loads(sys.argv[3]))
torch.set_num_threads(1)
session = TrainingSession.join("cpu")
steps = 0
def stop():
    global steps
    steps += 1
    return Stopped("enough", exit_code=143) if stop_after and steps > stop_after else None
session = replace(session, stop=stop)
from pathlib import Path
store = Checkpoints.of_rank(Path(folder), "x", session)
loop = Loop(training_data(rows=240, flips=20), recipe, session, checkpoints=store)
try:
    with store:
        state, scores = loop.run()
except Stopped:
    sys.exit(0)
if session.processes.is_leader:
    torch.save({"weights": state.model.state_dict(), "probs": torch.from_numpy(scores.probs),
                "kept": [row.kept for row in scores.history]}, Path(folder) / "result.pt")
import os
os._exit(0)  # as the command line does: no library's threads are taken down
"""


def train_on(ranks: int, folder: Path, *, stop_after: int = 0, **changes: Any) -> dict[str, Any] | None:
    folder.mkdir(exist_ok=True)
    script = folder / "worker.py"
    script.write_text(WORKER)
    words = [str(script), str(folder), str(stop_after), json.dumps(changes)]
    command = [sys.executable, *words]
    if ranks > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
        command = [*torchrun, *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    result = folder / "result.pt"
    return torch.load(result, weights_only=True) if result.exists() else None


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float((one["probs"] - other["probs"]).abs().max())


@pytest.mark.slow
def test_a_resumed_run_of_three_processes_ends_in_the_same_bits(tmp_path: Path) -> None:
    ranks = 3  # with two the order of a sum decides nothing
    whole = train_on(ranks, tmp_path / "whole")
    assert train_on(ranks, tmp_path / "stopped", stop_after=20) is None
    assert list((tmp_path / "stopped").glob("*.ckpt"))
    resumed = train_on(ranks, tmp_path / "stopped")
    assert whole is not None
    assert resumed is not None
    assert torch.equal(whole["probs"], resumed["probs"])
    assert all(torch.equal(whole["weights"][name], resumed["weights"][name]) for name in whole["weights"])


@pytest.mark.slow
def test_the_number_of_processes_changes_little(tmp_path: Path) -> None:
    """BatchNorm computes on each rank's own rows, so that more than rounding differs; the verdicts hardly do."""
    one, two = train_on(1, tmp_path / "one"), train_on(2, tmp_path / "two")
    assert one is not None
    assert two is not None
    assert (one["probs"].argmax(1) == two["probs"].argmax(1)).double().mean() > 0.99


@pytest.mark.slow
def test_without_batch_norm_the_number_of_processes_changes_rounding_only(tmp_path: Path) -> None:
    recipe = {"backbone": "without-norm", "flip": True, "mixup": 0.0, "epochs": 3, "sieve_start": 3, "ramp_epochs": 1}
    register = (
        "from torch import nn\n"
        "from noisesieve.learn.networks.backbones import BACKBONES, Backbone\n"
        "from noisesieve.learn.networks.depths import Depth, Network\n"
        "from noisesieve.learn.recipes import LAST\n"
        "class Plain(Network):\n"
        "    def __init__(self, depths, classes):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())\n"
        "        self.set_head(depths, classes)\n"
        "    def maps(self, x):\n"
        "        return {LAST: self.layer(x)}\n"
        "BACKBONES['without-norm'] = Backbone(lambda d, c, s: Plain(d, c), depths=(Depth(LAST, 8),))\n"
    )
    results: list[dict[str, Any]] = []
    global WORKER
    plain = WORKER
    try:
        WORKER = register + plain
        for ranks in (1, 2, 3):
            found = train_on(ranks, tmp_path / str(ranks), **recipe)
            assert found is not None
            results.append(found)
    finally:
        WORKER = plain
    assert max(apart(results[0], other) for other in results[1:]) < 1e-5
    assert all(results[0]["kept"] == other["kept"] for other in results[1:])


@pytest.mark.gpu
def test_a_step_on_a_gpu_waits_for_nothing() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    session = TrainingSession(processes=Processes(device=torch.device("cuda")))
    made = Loop(training_data(), RECIPE, session, checkpoints=None)
    made.state.model.train()
    made.state.epoch_facts = {"loss": 0.0, "kept": 0, "skipped": 0, "seconds": 0.0}
    made.updater.begin([0.0])
    batches = [torch.arange(start, start + 16) for start in (0, 16, 32)]
    made.train_step(*next(made.loader.steps(made.plans(batches))), 3)  # what is made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        for plan, images, columns in made.loader.steps(made.plans(batches)):
            made.train_step(plan, images, columns, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
