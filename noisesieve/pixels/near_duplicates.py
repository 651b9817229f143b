"""Images that look alike, by a cheap perceptual hash: is each cell of a grid brighter than the one to its left?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from noisesieve.core.progress import Session
from noisesieve.core.records import Bytes, Pixels

SIDE = 16  # a hash of 16 x 16 bits
BANDS = 16  # of 16 bits each; images that differ in fewer bits than there are bands share at least one band
MOST_BITS = 10
LARGEST_BUCKET = 50  # bands that more images share are ignored: plain backgrounds
FARTHEST = 8.0  # mean difference of the pixels, out of 255
MOST_PAIRS = 20_000
FLAT = 4.0  # images with a smaller deviation of grey values are not compared
BLOCK = 1024
GREY = np.array([0.299, 0.587, 0.114])


def near_duplicates(pixels: Pixels, session: Session) -> list[tuple[int, int]]:
    """Return pairs of rows with nearly equal images, copies included, in order. Flat images are not compared."""
    count = len(pixels)
    hashes = np.zeros((count, BANDS), dtype=np.uint16)
    flat = np.zeros(count, dtype=np.bool_)
    blocks = [np.arange(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]
    session.stage("comparing", count)
    for rows, images in zip(blocks, pixels.batches(blocks), strict=True):
        hashes[rows], flat[rows] = _hash(images)
        session.advance(len(rows))
        session.pause()
    session.finish()
    pairs: set[tuple[int, int]] = set()
    for band in range(BANDS):
        order = np.argsort(hashes[:, band], kind="stable")
        order = order[~flat[order]]
        cuts = np.flatnonzero(np.diff(hashes[order, band])) + 1
        for bucket in np.split(order, cuts):
            if 1 < len(bucket) <= LARGEST_BUCKET:
                pairs |= _close(bucket, hashes)
        session.pause()
    return _confirmed(sorted(pairs), pixels)


def _confirmed(pairs: list[tuple[int, int]], pixels: Pixels) -> list[tuple[int, int]]:
    """Return the pairs whose pixels differ little: the hash only finds candidates."""
    kept = []
    for start in range(0, min(len(pairs), MOST_PAIRS), BLOCK):
        part = np.array(pairs[start : start + BLOCK], dtype=np.int64)
        left, right = pixels.batches([part[:, 0], part[:, 1]])
        apart = np.abs(left.astype(np.int16) - right.astype(np.int16)).mean(axis=(1, 2, 3))
        kept += [(int(a), int(b)) for (a, b), gap in zip(part.tolist(), apart.tolist(), strict=True) if gap < FARTHEST]
    return kept


def _hash(images: Bytes) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]:
    """Return the hashes, (B, BANDS), and which images are too flat to be compared, (B,)."""
    grey = images @ GREY  # (B, S, S)
    side = grey.shape[1]
    columns = np.linspace(0, side, SIDE + 2)[:-1].astype(np.int64)  # SIDE + 1 of them
    rows = np.linspace(0, side, SIDE + 1)[:-1].astype(np.int64)
    small = np.add.reduceat(np.add.reduceat(grey, rows, axis=1), columns, axis=2)  # (B, SIDE, SIDE + 1)
    areas = np.diff(np.append(columns, side)) * np.diff(np.append(rows, side))[:, None]
    small = small / np.maximum(areas, 1)
    bits = small[:, :, 1:] > small[:, :, :-1] + 1.0
    packed = np.packbits(bits.reshape(len(images), -1), axis=1)
    return packed.view(np.uint16).reshape(len(images), BANDS), grey.std(axis=(1, 2)) < FLAT


def _close(bucket: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint16]) -> set[tuple[int, int]]:
    words = hashes[bucket]
    apart = np.bitwise_count(words[:, None] ^ words[None]).sum(axis=2)
    left, right = np.nonzero(np.triu(apart <= MOST_BITS, k=1))
    pairs = zip(bucket[left].tolist(), bucket[right].tolist(), strict=True)
    return {(min(a, b), max(a, b)) for a, b in pairs}
