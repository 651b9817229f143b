"""How sample_data was made: `python sample_data/make.py` writes digits/ and truth.csv anew, bit for bit.

Needs scikit-learn (extra `test`), which carries the digits.
"""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from noisesieve.noise.flips import instance
from noisesieve.pixels.image import decode_image

HERE = Path(__file__).parent
RATE, SEED = 0.2, 0


def main() -> None:
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), 0..16 → 0..255
    truth = digits.target.astype(np.int64)
    blobs = [_png(image) for image in images]
    at_32 = np.stack([decode_image(blob, size=32, max_pixels=64).pixels for blob in blobs])
    given = instance(at_32, truth, 10, rate=RATE, rng=np.random.default_rng(SEED))

    shutil.rmtree(HERE / "digits", ignore_errors=True)
    rows = []
    for i, blob in enumerate(blobs):
        path = f"{given[i]}/{i:04}.png"
        target = HERE / "digits" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(blob)
        rows.append((path, int(truth[i])))
    with (HERE / "truth.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("path", "label"))
        writer.writerows(sorted(rows))
    flips = int((given != truth).sum())
    print(f"{len(rows)} digits, {flips} planted flips ({flips / len(rows):.1%})")
    print("flips into class:", dict(enumerate(np.bincount(given[given != truth], minlength=10).tolist())))


def _png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
