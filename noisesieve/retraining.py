"""From a finished run to a better model: consistency training (CORES²*) on what the sieve let pass.

REPORT   report     the run            → which rows are clean, which corrupted, which decided by people
DECODE   pixels     the run's dataset  → Pixels at the run's size, and the test set's
RETRAIN  retrain    both               → a model, and plain cross-entropy beside it where asked for
RECORD   the output folder: model.safetensors + model.json, the run's report, history, retrain.json, curves.svg
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from noisesieve import __version__, decisions, pixels, report, sources
from noisesieve.dataset import report_unreadable
from noisesieve.errors import InputError, OutputError, StateError, Stopped, UsageError
from noisesieve.files import digest, locked, replacing, sha256_of, write_json
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.feed import Feed
from noisesieve.learn.model import Model, Trained, load_model, rate, save_model
from noisesieve.learn.opinion import alone
from noisesieve.learn.world import World, device_problem
from noisesieve.names import printable, without_xml_control
from noisesieve.records import Bools, Index, Ints, Looks
from noisesieve.reopen import index_of, pixels_of, settings_of
from noisesieve.retrain import plan as plans
from noisesieve.retrain.loop import Exam, Material, Retraining, Taught, examine
from noisesieve.retrain.picture import draw
from noisesieve.retrain.plan import RetrainRecipe
from noisesieve.settings import PixelSettings, Recipe, RetrainSettings, SourceSettings
from noisesieve.watch import Nobody, Stop, Watcher, pause_of

STALE = ("summary.json", "probabilities.parquet", "course.parquet", "division.parquet", "review.html", "curves.svg")
DROPPED, LEARNT, SEEN = 0, 1, 2  # a row takes no part, its label counts, only its picture does


@dataclass(frozen=True)
class Roles:
    """What each row of the report is to the retraining."""

    role: Ints  # (N,) DROPPED, LEARNT or SEEN
    labels: list[str]  # the label that counts
    counts: dict[str, int]  # for people: clean, corrupted, waived, decided, relabelled, left out, unreadable


def retrain(settings: RetrainSettings, *, watcher: Watcher | None = None, stop: Stop = lambda: None) -> dict[str, Any]:
    """Retrain a run's model into its own folder; what `retrain.json` says. Under torchrun every rank calls this."""
    if problem := device_problem(settings.device):
        raise UsageError(problem, "Leave --device out, or choose cpu.")
    world = World.join(settings.device)
    if world.leads:
        try:
            return _lead(settings, world, watcher or Nobody(), stop)
        finally:
            world.share("")  # the other ranks may go
    while file := world.share("", pause_of(stop)):
        _teach(json.loads(Path(file).read_text(encoding="utf-8")), world, Nobody(), stop)
    raise Stopped("", exit_code=0)


def _lead(settings: RetrainSettings, world: World, watcher: Watcher, stop: Stop) -> dict[str, Any]:
    """Every stage, in order."""
    made = report.read_report(settings.run)
    run = made.path.parent
    model = load_model(run, world.device)
    index = index_of(made, settings.data, settings.root)
    roles = roles_of(made, settings, index.root)
    if not (roles.role == LEARNT).any():
        raise InputError(f"{run}: no row is clean.", "There is nothing to learn from.")
    folder = report.output_folder(settings.output or _beside(run), index, watcher)
    if folder.exists() and folder.samefile(run):
        raise OutputError(f"{folder}: holds the run itself.", "Choose another folder with -o.")
    chosen, pause = replace(settings.pixels, max_pixels=pixels_of(made).max_pixels), pause_of(stop)
    with locked(folder):
        place = report.RunFolder(folder)
        looks = pixels.look(index, chosen, watcher, pause=pause)
        _refuse_changed(made, index, looks.sha256, roles.role)
        test = (
            None if settings.test is None else test_set(settings.test, model.classes, settings.pixels, watcher, pause)
        )
        identity = _identity(settings, made, roles, test)
        claim = place.claim(identity, index, looks, force=settings.force)
        if claim == "finished":
            watcher.note("This retraining is finished already: same settings, same run.")
            known: dict[str, Any] = json.loads((folder / "retrain.json").read_text(encoding="utf-8"))
            return {**known, "run": str(settings.run), "output": str(folder)}
        scratch, size = place.checkpoints, model.image_size
        decoded = pixels.decode(index, looks, chosen, watcher, size=size, scratch=scratch / "pixels", pause=pause)
        roles = _as_decoded(roles, made, decoded, watcher)
        exam = None
        if test is not None:
            exam = read_exam(
                *test, model.classes, size, settings.pixels, watcher, scratch=scratch / "test", pause=pause
            )
        labelled, unlabelled = (np.flatnonzero(roles.role[decoded.rows] == kind) for kind in (LEARNT, SEEN))
        ran = made.summary["training"]["recipe"]
        base = Recipe(**{**ran, "lr_steps": tuple(ran["lr_steps"])})
        recipe = plans.plan(
            base,
            settings.wishes,
            preset=settings_of(made, settings.data, settings.root).wishes.preset,
            labelled=len(labelled),
            unlabelled=len(unlabelled),
            flip=model.flip,
        )
        watcher.note(describe(recipe, len(labelled), len(unlabelled)))
        _warn_of_empty_classes(roles, model.classes, watcher)
        place.require_room(6 * (run / "model.safetensors").stat().st_size + 2**26)
        place.begin(identity, index, looks, fresh=claim == "fresh", version=__version__)
        codes, given = (_codes(labels, decoded, model.classes) for labels in (roles.labels, index.labels))
        shared = {
            "pixels": pixels.to_document(decoded.pixels),
            "classes": len(model.classes),
            "statistics": list(model.statistics),
            "exam": None
            if exam is None
            else {"pixels": pixels.to_document(exam.pixels), "labels": exam.labels.tolist()},
            "checkpoints": str(place.checkpoints),
            "identity": digest({**identity, "version": __version__}),
            "initial": _initial(model, recipe, place.checkpoints),
        }
        task = {**shared, "name": "retrain", "recipe": plans.to_document(recipe), "labels": codes.tolist()}
        taught = _begin({**task, "clean": labelled.tolist(), "corrupted": unlabelled.tolist()}, world, watcher, stop)
        plain = None
        if settings.baseline == "ce":
            passes = recipe.passes(len(labelled), len(unlabelled))
            rows = np.flatnonzero(made.verdicts[decoded.rows] != "unreadable")
            fair = plans.baseline(recipe, rows=len(rows), passes=passes)
            task = {**shared, "name": "ce", "recipe": plans.to_document(fair), "labels": given.tolist()}
            plain = _begin({**task, "clean": rows.tolist(), "corrupted": []}, world, watcher, stop)
        document = _record(
            place,
            made,
            model,
            recipe,
            roles,
            decoded,
            codes,
            given,
            exam,
            taught,
            plain,
            settings,
            world,
            watcher,
            stop,
        )
        place.write(identity, complete=True, version=__version__)
        return document


def roles_of(made: report.Report, settings: RetrainSettings, root: Path) -> Roles:
    """Clean rows teach their label, corrupted ones their picture; what people said stands above the verdict."""
    table, verdicts = made.table, made.verdicts
    labels = table["label"].to_pylist()
    clean = verdicts == "clean"
    division = made.path.parent / "division.parquet"
    if division.exists():  # the paper's recipe hands an earlier division over
        clean = pq.read_table(division)["clean"].to_numpy(zero_copy_only=False) & (verdicts != "unreadable")
    waived = table["waived"].to_numpy(zero_copy_only=False) & (verdicts != "unreadable")
    role: Ints = np.where(verdicts == "unreadable", DROPPED, np.where(clean | waived, LEARNT, SEEN)).astype(np.int64)
    relabelled = 0
    if settings.wishes.relabel is not None:
        chance = table["predicted_probability"].to_numpy(zero_copy_only=False)
        suggested = table["suggested_label"].to_pylist()
        for row in np.flatnonzero((role == SEEN) & (chance >= settings.wishes.relabel)).tolist():
            if suggested[row] is not None:
                labels[row], role[row], relabelled = suggested[row], LEARNT, relabelled + 1
    decided = _decided(made, settings, role, labels, root)
    return Roles(
        role,
        labels,
        {
            "clean": int((role == LEARNT).sum()),
            "corrupted": int((role == SEEN).sum()),
            "waived": int((waived & ~clean).sum()),
            "decided": decided,
            "relabelled": relabelled,
            "left_out": int(((role == DROPPED) & (verdicts != "unreadable")).sum()),
            "unreadable": int((verdicts == "unreadable").sum()),
        },
    )


def _decided(made: report.Report, settings: RetrainSettings, role: Ints, labels: list[str], root: Path) -> int:
    """Let people's decisions count: their label is clean, and what they called unusable takes no part."""
    if not settings.decisions:
        return 0
    said = [entry for file in settings.decisions for entry in decisions.read(file).decisions]
    outcomes, _ = decisions.resolve(made, said, root=root, new_classes=False)
    for row, outcome in outcomes.items():
        if made.verdicts[row] != "unreadable":
            role[row] = DROPPED if outcome.label is None else LEARNT
            labels[row] = outcome.label or labels[row]
    return len(outcomes)


def _refuse_changed(made: report.Report, index: Index, now: Sequence[str | None], role: Ints) -> None:
    before = made.table["sha256"].to_pylist()
    for row in np.flatnonzero(role != DROPPED).tolist():
        if now[row] != before[row]:
            raise StateError(
                f"{index.ids[row]!r}: {'gone' if now[row] is None else 'changed'} since the run.",
                "Scan the dataset again.",
            )


def _identity(
    settings: RetrainSettings, made: report.Report, roles: Roles, test: tuple[Index, Looks] | None
) -> dict[str, Any]:
    """What makes this retraining this one."""
    return {
        "run": sha256_of(made.path),
        "model": sha256_of(made.path.parent / "model.safetensors"),
        "wishes": vars(settings.wishes),
        "baseline": settings.baseline,
        "roles": digest([roles.role.tolist(), roles.labels]),
        "test": None if test is None else report.fingerprint(*test),
    }


def _beside(run: Path) -> Path:
    """`RUN-retrained`, wherever the run was named from."""
    return run.with_name(f"{run.name}-retrained") if run.name else Path(f"{run.resolve()}-retrained")


def _codes(labels: list[str], decoded: pixels.Decoded, classes: list[str]) -> Ints:
    """Labels of the readable rows as numbers; -1 for a class that the run does not know."""
    number = {name: code for code, name in enumerate(classes)}
    return np.array([number.get(labels[row], -1) for row in decoded.rows.tolist()], dtype=np.int64)


def _as_decoded(roles: Roles, made: report.Report, decoded: pixels.Decoded, watcher: Watcher) -> Roles:
    """Rows that cannot be decoded any more take no part, and are named."""
    lost = np.setdiff1d(np.flatnonzero(roles.role != DROPPED), decoded.rows)
    for row in lost[:5].tolist():
        watcher.warn(f"{made.table['id'][row].as_py()}: {decoded.looks.status[row]}: it takes no part.")
    role = roles.role.copy()
    role[lost] = DROPPED
    counts = {"clean": int((role == LEARNT).sum()), "corrupted": int((role == SEEN).sum())}
    return replace(roles, role=role, counts={**roles.counts, **counts})


def _warn_of_empty_classes(roles: Roles, classes: list[str], watcher: Watcher) -> None:
    taught = {label for label, role in zip(roles.labels, roles.role.tolist(), strict=True) if role == LEARNT}
    if missing := [name for name in classes if name not in taught]:
        watcher.warn(f"No clean row of {', '.join(map(repr, missing[:5]))}: the new model will never name that class.")


def test_set(
    source: SourceSettings, classes: list[str], settings: PixelSettings, watcher: Watcher, pause: Callable[[], None]
) -> tuple[Index, Looks]:
    """The rows of a test set whose classes the model knows; others are left out, and it is said."""
    index, known = sources.read(source, least_classes=1), set(classes)
    part = index.take(np.array([i for i, label in enumerate(index.labels) if label in known], dtype=np.int64))
    if len(part) == 0:
        raise InputError(f"{index.root}: no label of the test set is a class of the model.", "Is its column right?")
    if len(part) < len(index):
        watcher.warn(f"{len(index) - len(part):,} test rows have labels that the model does not know: left out.")
    return part, pixels.look(part, settings, watcher, pause=pause)


def read_exam(
    index: Index,
    looks: Looks,
    classes: list[str],
    size: int,
    settings: PixelSettings,
    watcher: Watcher,
    *,
    scratch: Path,
    pause: Callable[[], None],
) -> Exam:
    """A test set at the model's size."""
    decoded = pixels.decode(index, looks, settings, watcher, size=size, scratch=scratch, pause=pause)
    report_unreadable(index, decoded.looks, watcher)
    if len(decoded.rows) == 0:
        raise InputError(f"{index.root}: no image of the test set can be read.", "Is its root right?")
    codes = report.class_codes([index.labels[row] for row in decoded.rows.tolist()], classes)
    return Exam(decoded.pixels, torch.from_numpy(codes))


def _initial(model: Model, recipe: RetrainRecipe, folder: Path) -> str | None:
    """The run's weights, backbone included, where every rank finds them."""
    if recipe.start == "scratch":
        return None
    file = folder / "initial.safetensors"
    with replacing(file) as out:
        out.write(save({name: value.contiguous().cpu() for name, value in model.network.state_dict().items()}))
    return str(file)


def _begin(task: dict[str, Any], world: World, watcher: Watcher, stop: Stop) -> Taught:
    """Hand a training to every rank, and take part."""
    file = Path(task["checkpoints"]) / f"{task['name']}.json"
    write_json(file, task)
    world.share(str(file))
    return _teach(task, world, watcher, stop)


def _teach(task: dict[str, Any], world: World, watcher: Watcher, stop: Stop) -> Taught:
    """One training, from plain data; resumes by itself."""
    recipe = plans.from_document(task["recipe"])
    mean, std = task["statistics"]
    material = Material(
        pixels=pixels.from_document(task["pixels"]),
        labels=torch.tensor(task["labels"]),
        clean=torch.tensor(task["clean"]),
        corrupted=torch.tensor(task["corrupted"], dtype=torch.int64),
        classes=task["classes"],
        statistics=(mean, std),
        initial=None if task["initial"] is None else load_file(task["initial"]),
    )
    exam = task["exam"]
    if exam is not None:
        exam = Exam(pixels.from_document(exam["pixels"]), torch.tensor(exam["labels"]))
    keeper = Checkpoints(Path(task["checkpoints"]) / task["name"], identity=task["identity"], warn=watcher.warn)
    return Retraining(
        material, recipe, exam=exam, name=task["name"], world=world, watcher=watcher, checkpoints=keeper, stop=stop
    ).run()


def _record(
    place: report.RunFolder,
    made: report.Report,
    model: Model,
    recipe: RetrainRecipe,
    roles: Roles,
    decoded: pixels.Decoded,
    codes: Ints,
    given: Ints,
    exam: Exam | None,
    taught: Taught,
    plain: Taught | None,
    settings: RetrainSettings,
    world: World,
    watcher: Watcher,
    stop: Stop,
) -> dict[str, Any]:
    """Judge the run's rows by the new weights, for the model's card, and write every file."""
    folder = place.folder
    watcher.stage("scoring", len(given))
    feed = Feed(decoded.pixels, world.device, statistics=model.statistics)
    probs = examine(taught.state.average, feed, flip=model.flip, state=taught.state, stop=stop)
    watcher.finish()
    saved = alone(probs, torch.from_numpy(codes), model.sieve_eps).numpy()
    chances = made.table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)[decoded.rows]
    network = replace(recipe.network, sieve_eps=model.sieve_eps)
    corrupted: Bools = roles.role[decoded.rows] != LEARNT
    chances = np.where(~corrupted & (codes != given), 0.0, chances)  # corrected: what was wrong is no more
    save_model(
        folder,
        Trained.of_state(taught.state),
        prior=model.prior,
        beta=0.0,
        saved=saved,
        corrupted=corrupted,
        chances=np.nan_to_num(chances),
        recipe=network,
        classes=model.classes,
    )
    for old in STALE:  # of another run that was replaced
        (folder / old).unlink(missing_ok=True)
    with made.path.open("rb") as source, replacing(folder / "report.parquet") as file:
        shutil.copyfileobj(source, file)
    history = [*taught.history, *(plain.history if plain is not None else [])]
    report.write_table(pa.Table.from_pylist(history), folder / "history.parquet")
    before = None if exam is None else _before(model, exam, world, watcher)
    document = {
        "schema_version": 1,
        "version": __version__,
        "run": str(settings.run),
        "output": str(folder),
        "device": world.device.type,
        "recipe": plans.to_document(recipe),
        "rows": roles.counts,
        "passes": sum(row["images"] for row in taught.history),
        "seconds": sum(row["seconds"] for row in taught.history),
        "accuracy": None if exam is None else _accuracy(before, taught, plain, exam, model, world),
    }
    write_json(folder / "retrain.json", document)
    if exam is not None:
        with replacing(folder / "curves.svg") as file:
            file.write(
                draw(document["accuracy"], without_xml_control(printable(folder.name))).encode("utf-8", "replace")
            )
    return document


def _before(model: Model, exam: Exam, world: World, watcher: Watcher) -> Tensor:
    feed = Feed(exam.pixels, world.device, statistics=model.statistics)
    return rate(model, feed, torch.arange(len(exam.labels)), device=world.device, done=lambda count: None)


def _accuracy(
    before: Tensor | None, taught: Taught, plain: Taught | None, exam: Exam, model: Model, world: World
) -> dict[str, Any]:
    """Accuracy on the test set, of each epoch and of each class: the sieve's model, plain CE, the new model."""
    assert before is not None
    feed = Feed(exam.pixels, world.device, statistics=model.statistics)
    answers = {"before": before}
    for name, found in (("baseline", plain), ("after", taught)):
        if found is not None:
            answers[name] = examine(found.state.average, feed, flip=model.flip, state=found.state)
    right = {name: probs.argmax(dim=1) == exam.labels for name, probs in answers.items()}
    classes = [
        {
            "label": label,
            "of": int((exam.labels == code).sum()),
            **{name: float(hits[exam.labels == code].double().mean()) for name, hits in right.items()},
        }
        for code, label in enumerate(model.classes)
        if bool((exam.labels == code).any())
    ]
    return {
        "test_rows": len(exam.labels),
        **{name: float(hits.double().mean()) for name, hits in right.items()},
        "after_epochs": [row["test_accuracy"] for row in taught.history],
        "baseline_epochs": None if plain is None else [row["test_accuracy"] for row in plain.history],
        "baseline_best": None if plain is None else max(row["test_accuracy"] for row in plain.history),
        "classes": classes,
    }


def describe(recipe: RetrainRecipe, clean: int, corrupted: int) -> str:
    """The recipe in one line."""
    network = recipe.network
    pairs = f", {recipe.unlabelled_batch} unlabelled beside" if recipe.unlabelled_batch else ""
    return (
        f"{clean:,} labels, {corrupted:,} pictures without: {network.backbone} at {network.image_size} px "
        f"from {'the run' if recipe.start == 'run' else 'scratch'}, {recipe.epochs} epochs, batch {network.batch_size}"
        f"{pairs}, lr {network.lr:g}, consistency {recipe.weight:.2g} ({recipe.policy}, target {recipe.target})"
    )
