"""One photograph: from the bytes of a file to the JPEG that a shard stores, or the reason why not."""

import dataclasses
import hashlib
import io
import warnings

from PIL import ExifTags, Image

# Pillow's own limit would raise on the first and only warn on the second; ours is a setting.
Image.MAX_IMAGE_PIXELS = None


@dataclasses.dataclass(frozen=True)
class Packed:
    """A photograph as a shard stores it.

    Attributes:
        image_id: Name of the file without its ending.
        encoded: JPEG, RGB, its shorter side as the settings say (never enlarged).
        width: Pixels.
        height: Pixels.
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
    """Decodes, orients and resizes one file.

    The size is judged from the header, before any pixel is decoded, so a decompression bomb costs
    nothing. CMYK and greyscale become RGB; EXIF orientation is applied.

    Args:
        image_id: The photograph's id.
        content: The bytes of its file.
        settings: `ShardSettings`.

    Returns:
        `Packed`, or `Quarantined` with a reason that a person understands.
    """
    digest = hashlib.sha256(content).hexdigest()

    def refuse(reason: str) -> Quarantined:
        return Quarantined(image_id, digest, reason)

    if not content:
        return refuse("the file is empty")
    try:
        with warnings.catch_warnings():
            # A damaged EXIF block is no reason to lose a photograph, nor to fill the log.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content)) as image:
                if image.format not in ("JPEG", "MPO"):
                    return refuse(f"the content is {image.format}, not JPEG")
                width, height = image.size
                if width * height > settings.max_pixels:
                    return refuse(f"{width} x {height} pixels exceed shards.max_pixels {settings.max_pixels}")
                if min(width, height) < settings.min_side:
                    return refuse(f"{width} x {height} pixels are below shards.min_side {settings.min_side}")
                return _resized(image_id, image, digest, settings)
    except Image.UnidentifiedImageError:
        return refuse("the content is no image")
    except (OSError, SyntaxError, ValueError) as error:
        return refuse(f"it cannot be decoded: {str(error)[:200]}")


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


def _resized(image_id: str, image: Image.Image, digest: str, settings) -> Packed:
    side = settings.short_side
    width, height = image.size
    scale = min(1.0, side / min(width, height))
    if image.mode in ("RGB", "L"):
        # The JPEG decoder scales by powers of two for free; twice the target leaves the filter room.
        image.draft(image.mode, (round(width * scale * 2), round(height * scale * 2)))
    transposition = _transposition(image)
    image = image.convert("RGB")
    if transposition is not None:
        image = image.transpose(transposition)
    if scale < 1:
        width, height = image.size
        factor = side / min(width, height)
        image = image.resize((max(side, round(width * factor)), max(side, round(height * factor))), Image.LANCZOS)
    output = io.BytesIO()
    image.save(output, format="JPEG", quality=settings.quality, subsampling=0, optimize=False)
    return Packed(image_id, output.getvalue(), image.width, image.height, digest)
