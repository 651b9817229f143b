"""One image, hostile or not: the whole image upright in RGB, or a named reason."""

from __future__ import annotations

import csv
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisesieve.pixels.image import BACKGROUND, FORMATS, PADDING, Unreadable, decode_image, read_header

CAP = 2**26


def blob(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixels(content: bytes, size: int = 16) -> np.ndarray:
    return decode_image(content, size=size, max_pixels=CAP).pixels


def test_the_whole_image_is_visible_with_its_aspect_ratio() -> None:
    wide = Image.new("RGB", (40, 20), (10, 200, 30))
    got = pixels(blob(wide), 16)
    assert got.shape == (16, 16, 3)
    assert (got[4:12] == (10, 200, 30)).all()
    assert (got[:4] == PADDING).all()
    assert (got[12:] == PADDING).all()


def test_a_sliver_keeps_at_least_one_pixel() -> None:
    assert (pixels(blob(Image.new("RGB", (1000, 1), (9, 9, 9))))[7] == 9).all()


def test_exif_orientation_turns_the_image() -> None:
    image = Image.new("RGB", (16, 16), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 16, 4))  # a bar on top
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise: the bar stands on the right
    got = pixels(blob(image, "PNG", exif=exif))
    assert got[8, 15].min() > 200
    assert got[8, 0].max() < 50


def test_broken_exif_does_not_cost_the_image() -> None:
    assert pixels(blob(Image.new("RGB", (8, 8)), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")).shape == (
        16,
        16,
        3,
    )


def test_transparency_is_laid_on_white_and_hidden_colours_do_not_leak() -> None:
    hidden = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    assert (pixels(blob(hidden)) == BACKGROUND).all()
    palette = Image.new("P", (16, 16), 0)
    palette.putpalette([255, 0, 0] + [0] * 765)
    assert (pixels(blob(palette, "PNG", transparency=0)) == BACKGROUND).all()


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    values = np.zeros((16, 16), dtype=np.uint16)
    values[:, :8], values[:, 8:] = 1000, 40000
    got = pixels(blob(Image.fromarray(values)))
    assert got[0, 2, 0] == round(1000 / 257)
    assert got[0, 13, 0] == round(40000 / 257)


def test_cmyk_becomes_rgb() -> None:
    got = pixels(blob(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert got[8, 8, 0] > 200
    assert got[8, 8, 1] < 60


def test_an_animation_shows_its_first_frame() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    got = pixels(blob(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert got[8, 8].tolist() == [255, 0, 0]


def bomb() -> bytes:
    """A PNG of 13000 x 13000 one-bit pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"\x00" * (1626 * 13000), 9)
    head = struct.pack(">IIBBBBB", 13000, 13000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello, I am a image", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "not an image"),
        (blob(Image.new("RGB", (64, 64), (1, 2, 3)))[:60], "cannot be decoded"),
        (
            blob(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)), "JPEG")[:900],
            "truncated",
        ),
        (bomb(), "13000x13000"),
    ],
    ids=["empty", "text", "eps", "half a png", "half a jpeg", "bomb"],
)
def test_what_cannot_be_decoded_has_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        pixels(content)


def test_a_header_gives_the_size_without_decoding() -> None:
    assert read_header(blob(Image.new("RGB", (30, 20))), max_pixels=CAP) == (30, 20)
    with pytest.raises(Unreadable):
        read_header(bomb(), max_pixels=CAP)


def test_every_hostile_image_decodes_as_pillow_says_or_has_a_reason(shared_data: Path) -> None:
    folder = shared_data / "hostile"
    with (folder / "manifest.tsv").open() as file:
        known = {row["file"]: row for row in csv.DictReader(file, delimiter="\t")}
    decoded = refused = 0
    for path in sorted((folder / "images").iterdir()):
        row = known[path.name]
        try:
            got = pixels(path.read_bytes())
            decoded += 1
            assert got.shape == (16, 16, 3)
            assert row["pillow13"] == "ok"
        except Unreadable as reason:
            refused += 1
            assert str(reason)
            allowed = row["format"] in (*FORMATS, "MPO")
            assert row["pillow13"] != "ok" or not allowed
    assert decoded > 1000
    assert refused > 800
