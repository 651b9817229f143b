"""What a run will hold in memory, known before it starts: an upper bound, by its parts, against what is free."""

from __future__ import annotations

from collections.abc import Callable

from noisesieve.core.errors import InputError
from noisesieve.core.memory import available_memory
from noisesieve.core.progress import Session
from noisesieve.learn.frozen.projection import projected_width
from noisesieve.learn.networks.backbones import depths_of
from noisesieve.learn.recipes import HeadRecipe, Recipe
from noisesieve.learn.schedule import Schedule

IMPORTS = 750 * 2**20  # torch, pyarrow and the rest
BLOCKS = 200 * 2**20  # what is computed with at a time: blocks of probabilities in float64, a row group of the report
HEAD_VALUES, HEAD_BYTES = 2**22, 32  # logits of all heads for a block of rows, and the bytes for each of them
ROW_BYTES = 300  # index, hashes, verdict and rank of a row
IMAGE_FACTOR = 80  # bytes of activations per byte of a float32 image in training
BATCH_ON_CPU, FEATURE_BATCH = 128, 8  # images of a training step, and of a forward pass, that count


def memory_parts(
    recipe: Recipe, *, rows: int, classes: int, width: int = 0, weight_bytes: int = 0, on_cpu: bool = True
) -> dict[str, int]:
    """Return the bytes of everything that grows with the data, and of what does not, by name.

    `width` is the number of the user's own numbers per row, 0 for images.
    """
    sums = 1 if not recipe.epochs else 2  # CR and cross-entropy heads, or sum and snapshot; predictions have one
    scored = sum(Schedule(recipe, recipe.warmup_epochs).scores_after(e) for e in range(1, recipe.epochs + 1))
    parts = {
        "probabilities": rows * classes * 4 * sums,
        "margin history": rows * 4 * max(scored, min(recipe.epochs, recipe.average_epochs)),
        "rows": rows * ROW_BYTES,
        "imports and blocks": IMPORTS + BLOCKS,
    }
    if not isinstance(recipe, HeadRecipe):
        image = recipe.image_size**2 * 3 * 4
        activations = IMAGE_FACTOR * image * min(recipe.batch_size, BATCH_ON_CPU) if on_cpu else 0
        return {**parts, "network": 7 * weight_bytes + activations}
    if not recipe.epochs:  # predictions
        return parts
    views, heads = (1 if recipe.flip is False else 2), recipe.folds * recipe.head_seeds
    stored = width or sum(depth.width for depth in depths_of(recipe.backbone))
    projected = projected_width(stored, classes=classes)
    return {
        **parts,
        "features": rows * (width * 4 + (views + 1) * projected * 4),  # projected, and once more to find look-alikes
        "heads": rows * heads * 3 + heads * classes * projected * 4 * 4,
        "blocks of heads": min(HEAD_VALUES, rows * heads * classes) * HEAD_BYTES,
        "network": weight_bytes + (0 if width else IMAGE_FACTOR * recipe.image_size**2 * 3 * 4 * FEATURE_BATCH),
    }


def require_memory(
    parts_of: Callable[[int], dict[str, int]], rows: int, session: Session, *, hint: str = "--limit {rows}"
) -> None:
    """Say before the start that a run may need more memory than is free; refuse one that cannot fit.

    `parts_of` returns `memory_parts` of a number of rows. What cannot fit is what has to be held for sure, without
    blocks and room to spare. `hint` is the option that makes it smaller.
    """
    free = available_memory()
    parts = parts_of(rows)
    if free is None or (need := sum(parts.values())) <= free:
        return
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    listed = ", ".join(f"{name} {_gigabytes(size)}" for name, size in largest)
    problem = f"needs up to {_gigabytes(need)} of memory, {_gigabytes(free)} are free: {listed}."
    few = rows
    while few > 1 and sum(parts_of(few).values()) > free:
        few = few * 9 // 10
    fits = sum(parts_of(few).values()) <= free
    advice = f"{hint.format(rows=few)} would fit." if fits else "Free some memory, or use a larger machine."
    certain = sum(size for name, size in parts.items() if name in ("probabilities", "features", "margin history"))
    if certain > free:
        raise InputError(f"This run {problem}", advice)
    session.warn(f"This run {problem} {advice}")


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GB"
