"""One image: bytes → uint8 (S, S, 3), the whole picture visible. The bytes are hostile; the reason is always named."""

from __future__ import annotations

import functools
import io
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

Pixels8 = npt.NDArray[np.uint8]

# Pillow opens some 40 formats; these are what annotators see in a browser or a labelling tool, and what
# scanners and satellites write. MPO is a JPEG with further pictures behind the first.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
BACKGROUND = 255  # transparent pixels are laid on white, as a page would show them
PADDING = 128  # the bars beside a picture that is not square: neither dark nor bright
THUMBNAIL_QUALITY = 75
PIXEL_ART = 64  # a picture this small is kept exactly: there is little to save, and every pixel shows
ORIENTATION_TAG = 0x0112
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

# The pixel cap below replaces Pillow's own, which warns first and allocates then.
Image.MAX_IMAGE_PIXELS = None


class Unreadable(Exception):
    """This image cannot be used; the text is the row's status."""


@dataclass(frozen=True)
class Decoded:
    """Pixels at training size, and the picture's own width and height."""

    pixels: Pixels8  # (S, S, 3)
    width: int
    height: int


def decode(blob: bytes, *, size: int, max_pixels: int) -> Decoded:
    """Decode fully, upright, in RGB, fitted into size x size with its aspect ratio kept. Raises Unreadable."""
    picture, width, height = _picture(blob, size, max_pixels)
    return Decoded(_letterbox(picture, size), width, height)


def thumbnail(blob: bytes, *, longest: int, max_pixels: int) -> bytes:
    """A small WebP for people: upright, in its own aspect ratio, never enlarged. Raises Unreadable."""
    picture, _, _ = _picture(blob, longest, max_pixels)
    sink = io.BytesIO()
    few = max(picture.size) <= PIXEL_ART
    picture.save(sink, "WEBP", lossless=few, quality=THUMBNAIL_QUALITY)
    return sink.getvalue()


def _picture(blob: bytes, longest: int, max_pixels: int) -> tuple[Image.Image, int, int]:
    """The upright RGB picture, at most about `longest` on a side, and the width and height of the original."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about odd metadata; the pixels decide
            with _open(blob, max_pixels) as image:
                width, height = image.size
                image.draft("RGB", (2 * longest, 2 * longest))  # JPEG: decode at 1/2, 1/4, 1/8 where that is enough
                return _upright(image, _rgb(image, longest)), width, height
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # decoders raise anything: OSError, SyntaxError, struct.error, IndexError ...
        raise Unreadable(_reason(error)) from error


def header(blob: bytes, *, max_pixels: int) -> tuple[int, int]:
    """Width and height from the header alone, nothing decoded. Raises Unreadable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _open(blob, max_pixels) as image:
                return image.size
    except Unreadable:
        raise
    except Exception as error:  # as above: a header parser is a decoder too
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
    """RGB at most about `longest` on a side: shrunk early where the mode allows, so that later steps are cheap."""
    image.load()
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _from_deep(image)
    if image.has_transparency_data:
        rgba = _shrink(image.convert("RGBA").convert("RGBa"), longest).convert("RGBA")
        page = Image.new("RGBA", rgba.size, (BACKGROUND, BACKGROUND, BACKGROUND, 255))
        return Image.alpha_composite(page, rgba).convert("RGB")
    return _shrink(image.convert("RGB"), longest)


def _from_deep(image: Image.Image) -> Image.Image:
    """8 bits from 16, 32 or float, by scaling: `convert` would clip everything above 255 to white."""
    values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if image.mode == "F" and low >= 0 and high <= 1:
        scaled = values * 255
    elif low >= 0 and high <= 65535 and image.mode != "F":
        scaled = values / 257  # the full 16-bit range, so that two pictures stay comparable
    else:
        scaled = (values - low) * (255 / (high - low) if high > low else 0.0)
    return Image.fromarray(scaled.round().astype(np.uint8))


def _shrink(image: Image.Image, longest: int) -> Image.Image:
    if max(image.size) > longest:
        image.thumbnail((longest, longest), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return image


def _upright(source: Image.Image, picture: Image.Image) -> Image.Image:
    """Turn as the EXIF orientation says. Broken EXIF leaves the picture as it lies: viewers do the same."""
    try:
        turn = _TRANSPOSE.get(source.getexif().get(ORIENTATION_TAG, 1))
    except Exception:
        return picture
    return picture if turn is None else picture.transpose(turn)


def _letterbox(picture: Image.Image, size: int) -> Pixels8:
    scale = size / max(picture.size)
    fitted = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    if picture.size != fitted:
        picture = picture.resize(fitted, Image.Resampling.BICUBIC)
    canvas = np.full((size, size, 3), PADDING, dtype=np.uint8)
    top, left = (size - fitted[1]) // 2, (size - fitted[0]) // 2
    canvas[top : top + fitted[1], left : left + fitted[0]] = np.asarray(picture)
    return canvas


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a supported format"
    said = error.args[0] if error.args else ""
    text = " ".join((said.decode("ascii", "replace") if isinstance(said, bytes) else str(error)).split())[:200]
    return f"cannot be decoded: {text or type(error).__name__}"
