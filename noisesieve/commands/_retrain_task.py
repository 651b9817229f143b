"""One training of `retrain`, and its way to the other ranks: arrays in NumPy files, and a small JSON beside them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from noisesieve.core.files import write_json
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.pixels.transfer import load_pixels, save_pixels
from noisesieve.retrain.data import LabelledTestSet, RetrainData


@dataclass(frozen=True)
class RetrainTask:
    """One training, as rank 0 passes it to the other ranks."""

    name: str
    data: RetrainData
    recipe: RetrainRecipe
    test_set: LabelledTestSet | None
    checkpoints: Path  # folder of the checkpoints
    identity: str  # hash of settings and data, stored in every checkpoint

    def save(self, folder: Path) -> None:
        """Write the task to a folder that every rank can read."""
        data, test_set = self.data, self.test_set
        save_pixels(data.pixels, folder)
        arrays = {name: getattr(data, name).numpy() for name in ("labels", "clean", "corrupted")}
        if test_set is not None:
            save_pixels(test_set.pixels, folder / "test")
            arrays["test_labels"] = test_set.labels.numpy()
        np.savez(folder / "arrays.npz", **arrays)
        if data.initial is not None:
            save_file(data.initial, folder / "initial.safetensors")
        document = {
            "name": self.name,
            "recipe": asdict(self.recipe),
            "classes": data.classes,
            "statistics": data.statistics,
            "initial": data.initial is not None,
            "checkpoints": str(self.checkpoints),
            "identity": self.identity,
        }
        write_json(folder / "task.json", document)

    @classmethod
    def load(cls, folder: Path) -> RetrainTask:
        """Read the task that rank 0 saved."""
        document = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        arrays = {name: torch.from_numpy(value) for name, value in np.load(folder / "arrays.npz").items()}
        test_set = None
        if "test_labels" in arrays:
            test_set = LabelledTestSet(load_pixels(folder / "test"), arrays["test_labels"])
        mean, std = document["statistics"]
        data = RetrainData(
            pixels=load_pixels(folder),
            labels=arrays["labels"],
            clean=arrays["clean"],
            corrupted=arrays["corrupted"],
            classes=document["classes"],
            statistics=(mean, std),
            initial=load_file(folder / "initial.safetensors") if document["initial"] else None,
        )
        recipe = RetrainRecipe(**document["recipe"])
        return cls(document["name"], data, recipe, test_set, Path(document["checkpoints"]), document["identity"])
