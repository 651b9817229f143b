"""How files are decoded, and where their pixels are cached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from noisesieve.core.options import MACHINE, Settings, option, parse_bytes


@dataclass(frozen=True)
class PixelSettings(Settings):
    """How files are decoded, and where pixels and features are cached."""

    workers: int | None = option(
        None, "Decoding processes. Default: one per core.", MACHINE, minimum=1, maximum=1024, shared=True
    )
    cache_dir: Path | None = option(
        None, "Folder of the cache. Default: the user's cache folder.", MACHINE, shared=True
    )
    cache: bool = option(
        True, "Keep pixels and features for later runs.", MACHINE, flags=("--cache/--no-cache",), shared=True
    )
    cache_budget: int = option(
        20 * 10**9,
        "A dataset whose pixels need more is streamed.",
        MACHINE,
        minimum=0,
        maximum=2**60,
        parse=parse_bytes,
        shown="20GB",
        metavar="SIZE",
    )
    max_pixels: int = option(2**26, "Images with more pixels are not decoded.", MACHINE, minimum=1, maximum=2**40)
    decode_seconds: float = 60.0  # time limit per image; then its worker process is replaced
