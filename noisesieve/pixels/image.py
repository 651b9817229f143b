"""One image: bytes → uint8 (S, S, 3). The bytes are not trusted; every failure has a reason."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from noisesieve.core.records import Bytes, Floats

# Pillow opens about 40 formats; these are the ones that browsers, labelling tools, scanners and satellites use.
# MPO is a JPEG followed by further images.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
BACKGROUND = 255  # transparent pixels are composited on white, as on a web page
PADDING = 128  # grey value of the bars beside an image that is not square
THUMBNAIL_QUALITY = 75
LOSSLESS_SIDE = 64  # thumbnails up to this side are lossless: every pixel is visible
ORIENTATION_TAG = 0x0112
STRIP = 2**20  # pixels of a deep image that are scaled at a time
DECODER_VERSION = 1  # part of the cache key: raise it when the pixels of any image change

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Unreadable(Exception):
    """This image cannot be used; the text is the row's status."""


@dataclass(frozen=True)
class DecodedImage:
    """Pixels at training size, and the width and height of the original image."""

    pixels: Bytes  # (S, S, 3)
    width: int
    height: int


def decode_image(blob: bytes, *, size: int, max_pixels: int) -> DecodedImage:
    """Decode fully, upright, in RGB, fitted into size x size with its aspect ratio kept. Raises Unreadable."""
    image, width, height = _upright_rgb(blob, size, max_pixels)
    return DecodedImage(_letterbox(image, size), width, height)


def make_thumbnail(blob: bytes, *, longest: int, training_size: int = 0, max_pixels: int) -> bytes:
    """Return a small WebP: upright, in its own aspect ratio, never enlarged. Raises Unreadable.

    An image that is not shown larger than it was trained on is made of its training pixels: the same bytes as
    `thumbnail_of_pixels` makes of stored ones.
    """
    if training_size and uses_training_pixels(*read_header(blob, max_pixels=max_pixels), longest, training_size):
        image = decode_image(blob, size=training_size, max_pixels=max_pixels)
        return thumbnail_of_pixels(image.pixels, image.width, image.height, longest=longest)
    return _webp(_upright_rgb(blob, longest, max_pixels)[0])


def uses_training_pixels(width: int, height: int, longest: int, training_size: int) -> bool:
    """Return True if an image of this size is shown by its training pixels: the file would show no more of it."""
    return min(max(width, height), longest) <= training_size


def thumbnail_of_pixels(pixels: Bytes, width: int, height: int, *, longest: int) -> bytes:
    """Return a small WebP of the training pixels (S, S, 3) of an image that was `width` x `height`, without bars."""
    places = [_inside(pixels, width, height), _inside(pixels, height, width)]  # the second one if it was turned
    inside = max(places, key=lambda place: int((pixels[place] != PADDING).sum()))
    return _webp(_shrink(Image.fromarray(np.ascontiguousarray(pixels[inside])), longest))


def _inside(pixels: Bytes, width: int, height: int) -> tuple[slice, slice]:
    """Return where an image is in its training pixels."""
    size = len(pixels)
    columns, rows = _fitted(width, height, size)
    top, left = (size - rows) // 2, (size - columns) // 2
    return slice(top, top + rows), slice(left, left + columns)


def _webp(image: Image.Image) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "WEBP", lossless=max(image.size) <= LOSSLESS_SIDE, quality=THUMBNAIL_QUALITY)
    return sink.getvalue()


def _upright_rgb(blob: bytes, longest: int, max_pixels: int) -> tuple[Image.Image, int, int]:
    """Return the upright RGB image, at most about `longest` on a side, and the width and height of the original."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about odd metadata, which does not matter here
            with _open(blob, max_pixels) as image:
                width, height = image.size
                image.draft("RGB", (2 * longest, 2 * longest))  # JPEG: decode at 1/2, 1/4 or 1/8 if that is enough
                return _upright(image, _rgb(image, longest)), width, height
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # decoders raise anything: OSError, SyntaxError, struct.error, IndexError ...
        raise Unreadable(_reason(error)) from error


def read_header(blob: bytes, *, max_pixels: int) -> tuple[int, int]:
    """Return width and height from the header, without decoding. Raises Unreadable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _open(blob, max_pixels) as image:
                return image.size
    except Unreadable:
        raise
    except Exception as error:  # as above
        raise Unreadable(_reason(error)) from error


def _open(blob: bytes, max_pixels: int) -> Image.Image:
    if not blob:
        raise Unreadable("the file is empty")
    image = Image.open(io.BytesIO(blob), formats=_formats())
    if image.width * image.height > max_pixels:
        raise Unreadable(f"{image.width}x{image.height} pixels, more than --max-pixels {max_pixels}")
    return image


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # a Pillow built without AVIF has no AVIF


def _rgb(image: Image.Image, longest: int) -> Image.Image:
    """Return RGB at most about `longest` on a side, shrunk as early as the mode allows."""
    image.load()
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _from_deep(image)
    if image.has_transparency_data:
        rgba = _shrink(image.convert("RGBA").convert("RGBa"), longest).convert("RGBA")
        background = Image.new("RGBA", rgba.size, (BACKGROUND, BACKGROUND, BACKGROUND, 255))
        return Image.alpha_composite(background, rgba).convert("RGB")
    return _shrink(image.convert("RGB"), longest)


def _from_deep(image: Image.Image) -> Image.Image:
    """Return 8 bits from 16, 32 or float by scaling; Pillow's `convert` would clip everything above 255.

    The image is scaled in strips: all of it in float64 would take eight times its memory.
    """
    low = min(float(strip.min()) for _, strip in _strips(image))
    high = max(float(strip.max()) for _, strip in _strips(image))
    pixels = np.empty((image.height, image.width), dtype=np.uint8)
    for top, values in _strips(image):
        if image.mode == "F" and low >= 0 and high <= 1:
            scaled = values * 255
        elif low >= 0 and high <= 65535 and image.mode != "F":
            scaled = values / 257  # always the full 16-bit range, so that images stay comparable
        else:
            scaled = (values - low) * (255 / (high - low) if high > low else 0.0)
        pixels[top : top + len(values)] = scaled.round().astype(np.uint8)
    return Image.fromarray(pixels)


def _strips(image: Image.Image) -> Iterator[tuple[int, Floats]]:
    """Yield the rows of an image a few at a time, as finite numbers, with the number of the first."""
    height = max(1, STRIP // image.width)
    for top in range(0, image.height, height):
        part = np.asarray(image.crop((0, top, image.width, min(image.height, top + height))))
        yield top, np.nan_to_num(part.astype(np.float64), posinf=0.0, neginf=0.0)


def _shrink(image: Image.Image, longest: int) -> Image.Image:
    if max(image.size) > longest:
        image.thumbnail((longest, longest), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return image


def _upright(source: Image.Image, image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation of `source`. Broken EXIF is ignored, as viewers do."""
    try:
        turn = _TRANSPOSE.get(source.getexif().get(ORIENTATION_TAG, 1))
    except Exception:
        return image
    return image if turn is None else image.transpose(turn)


def _fitted(width: int, height: int, size: int) -> tuple[int, int]:
    """Return width and height of an image that is fitted into size x size."""
    scale = size / max(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _letterbox(image: Image.Image, size: int) -> Bytes:
    fitted = _fitted(*image.size, size)
    if image.size != fitted:
        image = image.resize(fitted, Image.Resampling.BICUBIC)
    canvas = np.full((size, size, 3), PADDING, dtype=np.uint8)
    top, left = (size - fitted[1]) // 2, (size - fitted[0]) // 2
    canvas[top : top + fitted[1], left : left + fitted[0]] = np.asarray(image)
    return canvas


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a supported format"
    first = error.args[0] if error.args else ""
    text = " ".join((first.decode("ascii", "replace") if isinstance(first, bytes) else str(error)).split())[:200]
    return f"cannot be decoded: {text or type(error).__name__}"
