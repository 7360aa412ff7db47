"""One photograph: from the bytes of a file to the JPEG that a shard stores, or the reason why not."""

import dataclasses
import hashlib
import io
import warnings

from PIL import ExifTags, Image, ImageChops
from PIL import WebPImagePlugin  # noqa: F401  or else the first photograph of all would load every plugin of Pillow's

# Pillow's own limit would raise on the first and only warn on the second; ours is a setting.
Image.MAX_IMAGE_PIXELS = None

# A damaged EXIF block is no reason to fill the log. Once for the process: `catch_warnings` is not safe in threads.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

# Whatever the file is called; no other parser of Pillow's sees the bytes. A multi-picture file opens as JPEG.
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP")

# The longest side that libjpeg writes (JPEG_MAX_DIMENSION).
_JPEG_SIDE = 65500

@dataclasses.dataclass(frozen=True)
class Packed:
    """A photograph as a shard stores it.

    Attributes:
        image_id: Name of the file without its ending.
        encoded: JPEG, RGB, its shorter side as the settings say (never enlarged). With `original`, the bytes of the
            file if they are such a JPEG already, or a greyscale one.
        width: Pixels of what is stored.
        height: Pixels of what is stored.
        source_sha256: Digest of the file's bytes.
    """

    image_id: str
    encoded: bytes
    width: int
    height: int
    source_sha256: str

    @property
    def sha256(self) -> str:
        """Digest of the stored bytes."""
        return hashlib.sha256(self.encoded).hexdigest()


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A file that no shard takes, and why."""

    image_id: str
    source_sha256: str
    reason: str


def pack(image_id: str, content: bytes, settings) -> Packed | Quarantined:
    """Decodes, orients and resizes one file; the same bytes give the same result, on any number of threads at once.

    JPEG is taken, and PNG, GIF and WebP too, because photographs arrive under wrong names; of several pictures in a
    file, the first. The size is judged from the header, before any pixel is decoded, so a decompression bomb costs
    nothing. CMYK, greyscale and palettes become RGB; what is transparent is laid over white; EXIF orientation is
    applied.

    Args:
        image_id: The photograph's id.
        content: The bytes of its file.
        settings: `ShardSettings`. With `short_side` "original" nothing is resized, and an upright JPEG in RGB or
            greyscale is stored byte for byte; it is decoded all the same, to know that it can be.

    Returns:
        `Packed`, or `Quarantined` with a reason that a person understands.
    """
    digest = hashlib.sha256(content).hexdigest()

    def refuse(reason: str) -> Quarantined:
        return Quarantined(image_id, digest, reason)

    if not content:
        return refuse("the file is empty")
    try:
        # Pillow allocates a WebP's canvas as it opens it.
        reason = _unfit(_webp_canvas(content), settings)
        if reason:
            return refuse(reason)
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            reason = _unfit(image.size, settings)
            if reason:
                return refuse(reason)
            stored, size = _stored(content, image, settings)
            return Packed(image_id, stored, *size, digest)
    except Image.UnidentifiedImageError:
        return refuse("the content is no JPEG, PNG, GIF or WebP that can be read")
    except MemoryError:  # says something of this machine, not of the file
        raise
    except Exception as error:  # on damaged content Pillow raises nearly every kind
        return refuse(f"it cannot be decoded: {str(error)[:200] or type(error).__name__}")


def _unfit(size: tuple[int, int] | None, settings) -> str | None:
    if size is None:
        return None
    width, height = size
    if width * height > settings.max_pixels:
        return f"{width} x {height} pixels exceed shards.max_pixels {settings.max_pixels}"
    if min(width, height) < settings.min_side:
        return f"{width} x {height} pixels are below shards.min_side {settings.min_side}"
    if max(_stored_size(size, settings.short_side)) > _JPEG_SIDE:
        return f"{width} x {height} pixels make a picture longer than the {_JPEG_SIDE} that a JPEG can have"
    return None


def _webp_canvas(content: bytes) -> tuple[int, int] | None:
    """Width and height that the header of a WebP announces: RFC 9649, sections 2.5 to 2.7."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return None

    def number(start, size):
        return int.from_bytes(content[start : start + size], "little")

    match content[12:16]:
        case b"VP8X":
            return number(24, 3) + 1, number(27, 3) + 1
        case b"VP8L":
            return (number(21, 4) & 0x3FFF) + 1, (number(21, 4) >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return number(26, 2) & 0x3FFF, number(28, 2) & 0x3FFF
    return None


def _stored(content: bytes, image: Image.Image, settings) -> tuple[bytes, tuple[int, int]]:
    as_it_is = settings.short_side == "original" and image.mode in ("RGB", "L") and _is_lossy_jpeg(content)
    pixels = scaled(image, settings.short_side)
    # After decoding: to look for the tag decodes a PNG, and what goes wrong with its pixels would be lost there.
    turn = _transposition(image)
    if as_it_is and turn is None:
        return content, image.size
    if turn is not None:
        pixels = pixels.transpose(turn)
    output = io.BytesIO()
    # Full colour resolution, and none of the source's comment, which Pillow would copy.
    pixels.save(output, format="JPEG", quality=settings.quality, subsampling=0, comment=b"")
    return output.getvalue(), pixels.size


def _is_lossy_jpeg(content: bytes) -> bool:
    """Whether TensorFlow's decoder knows this kind of JPEG; the lossless kind is read by Pillow only."""
    at = 2
    while at + 1 < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        # A frame header: ITU-T T.81, table B.1; C4, C8 and CC are other things.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return marker not in (0xC3, 0xC7, 0xCB, 0xCF)
        at += 1 if marker == 0xFF else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return False


def scaled(image: Image.Image, short_side: int | str) -> Image.Image:
    """Decodes an opened photograph at the size in which it is stored, not yet turned upright.

    Args:
        image: The photograph, opened and not yet decoded.
        short_side: As in `ShardSettings`.

    Returns:
        RGB, its shorter side `short_side`; or of the photograph's own size if that is less, or with "original".
    """
    (width, height), size, box = image.size, _stored_size(image.size, short_side), None
    scale = _decode_scale(min(width, height), short_side) if image.format in ("JPEG", "MPO") else 1
    if scale > 1:
        # Pillow takes the largest scale that leaves at least this size; libjpeg rounds the sides up.
        image.draft(image.mode, (width // scale, height // scale))
        # What the last column and row stand for beyond the photograph's edge is not to be seen.
        box = (0, 0, width / scale, height / scale)
        if min(image.size) == min(size):
            size = image.size
    image.load()
    pixels = _rgb(image)
    return pixels if pixels.size == size else pixels.resize(size, Image.LANCZOS, box=box)


def _stored_size(size: tuple[int, int], short_side: int | str) -> tuple[int, int]:
    short = min(size)
    if short_side == "original" or short <= short_side:
        return size
    return max(short_side, round(size[0] * short_side / short)), max(short_side, round(size[1] * short_side / short))


# The JPEG decoder reduces by 2, 4 or 8 at almost no cost, and well. What hurts is the filter after it when little is
# left for it to do: it blurs once more what is sharp at that size already. So some room is left between what is decoded
# and the target. Photographs of 600 to 1600 pixels to 256 (`bench/shards.py codec`), those that are reduced against
# their full decode and the same filter:
#
#     room                 1     1.25   1.5   2
#     PSNR, worst, dB      40.5  44.3   48.0  52.0
#     PSNR, mean, dB       49.9  51.7   53.7  54.6
#     CPU ms a photograph  6.0   7.4    8.5   9.9
#
# To store them as JPEG of quality 90 leaves 42.7 dB in the mean and 37.3 in the worst case, whatever was done before:
# at 1.5 the reduction takes 0.2 and 0.1 from that.
_ROOM = 1.5


def _decode_scale(short: int, short_side: int | str) -> int:
    """By how much the JPEG decoder reduces a photograph whose shorter side is `short`: 1, 2, 4 or 8."""
    if short_side == "original":
        return 1
    for scale in (8, 4, 2):
        # Exactly on the target there is nothing for the filter to do.
        if short == scale * short_side or short >= scale * short_side * _ROOM:
            return scale
    return 1


# EXIF's orientation -> what sets the pixels upright. EXIF 2.32 (CIPA DC-008), table of tag 0x0112.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _transposition(image: Image.Image) -> Image.Transpose | None:
    # Not ImageOps.exif_transpose: that writes the other tags anew and fails on a damaged one.
    try:
        return _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # whatever Pillow makes of a damaged block, the pixels are fine
        return None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I;16":
        raise ValueError("greyscale of 16 bits is not taken")
    if image.mode == "CMYK" and "adobe" not in image.info:
        # Adobe's programs store CMYK inverted, and Pillow takes every file for one of theirs.
        image = ImageChops.invert(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")
