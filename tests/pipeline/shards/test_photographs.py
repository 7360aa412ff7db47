"""One file: what a shard stores of it, or why no shard takes it."""

import hashlib
import io
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from pipeline.shards.photographs import Packed, Quarantined, pack
from tests.pipeline.shards.conftest import jpeg, shard_settings

ORIENTATION = 0x0112
COLOURS = ((230, 30, 30), (30, 200, 30), (30, 30, 230), (230, 220, 30))

# What turns an upright photograph into the one that a camera stores with this orientation.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def decoded(packed: Packed) -> Image.Image:
    return Image.open(io.BytesIO(packed.encoded))


def reason(content: bytes, **settings) -> str:
    refused = pack("p1", content, shard_settings(**settings))
    assert isinstance(refused, Quarantined) and refused.image_id == "p1"
    assert refused.source_sha256 == hashlib.sha256(content).hexdigest()
    return refused.reason


def encoded(image: Image.Image, orientation: int | None = None) -> bytes:
    content, exif = io.BytesIO(), Image.Exif()
    if orientation:
        exif[ORIENTATION] = orientation
    image.save(content, "JPEG", quality=95, exif=exif)
    return content.getvalue()


def quarters(width=96, height=64) -> Image.Image:
    """Red, green above blue, yellow."""
    image = Image.new("RGB", (width, height))
    for position, colour in enumerate(COLOURS):
        image.paste(colour, (position % 2 * width // 2, position // 2 * height // 2, width, height))
    return image


def corners(image: Image.Image) -> list[int]:
    """Index of the colour in each quarter."""
    found = []
    for y in (1, 3):
        for x in (1, 3):
            pixel = np.array(image.convert("RGB").getpixel((image.width * x // 4, image.height * y // 4)), int)
            found.append(int(np.argmin([np.abs(pixel - colour).sum() for colour in COLOURS])))
    return found


@pytest.mark.parametrize(
    ("size", "stored"),
    [
        ((80, 60), (43, 32)),
        ((60, 80), (32, 43)),
        ((64, 64), (32, 32)),
        ((400, 33), (388, 32)),
        ((33, 32), (33, 32)),
        ((1000, 640), (50, 32)),
        ((20, 24), (20, 24)),  # never enlarged
    ],
)
def test_the_shorter_side_is_exact_and_nothing_is_enlarged(size, stored):
    packed = pack("p1", jpeg(*size), shard_settings())
    assert (packed.width, packed.height) == stored == decoded(packed).size


def test_what_is_packed_is_an_rgb_jpeg_with_its_digests():
    content = jpeg()
    packed = pack("p1", content, shard_settings())
    image = decoded(packed)
    assert (packed.image_id, image.format, image.mode) == ("p1", "JPEG", "RGB")
    assert packed.source_sha256 == hashlib.sha256(content).hexdigest()
    assert packed.sha256 == hashlib.sha256(packed.encoded).hexdigest()


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (200, 90, 40)), ("CMYK", (200, 90, 40)), ("L", (112, 112, 112))])
def test_every_colour_space_becomes_rgb_of_the_same_colour(mode, colour):
    content = encoded(Image.new("RGB", (80, 60), (200, 90, 40)).convert(mode))
    assert Image.open(io.BytesIO(content)).mode == mode
    image = decoded(pack("p1", content, shard_settings()))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image, float).mean(axis=(0, 1)) - colour).max() < 6


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "L"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_exif_orientation_is_applied(mode, orientation):
    upright = quarters()
    packed = pack("p1", encoded(upright.transpose(STORED_AS[orientation]).convert(mode), orientation), shard_settings())
    image = decoded(packed)
    assert (packed.width, packed.height) == image.size == (48, 32)
    if mode == "L":
        wanted = np.asarray(upright.convert("L").resize((48, 32)), float)
        assert np.abs(np.asarray(image.convert("L"), float) - wanted).mean() < 8
    else:
        assert corners(image) == [0, 1, 2, 3]
    # Whoever reads the shard must not turn it once more.
    assert ORIENTATION not in image.getexif()


def test_orientation_is_applied_to_a_photograph_that_is_not_resized():
    packed = pack("p1", encoded(quarters(24, 20).transpose(STORED_AS[6]), 6), shard_settings())
    assert (packed.width, packed.height) == (24, 20)
    assert corners(decoded(packed)) == [0, 1, 2, 3]


@pytest.mark.parametrize("exif", [b"garbage", b"", b"II*\0\xff\xff\xff\x7f", b"MM\0*\0\0\0\x08\xff\xff"])
def test_a_damaged_exif_block_loses_no_photograph_and_warns_of_nothing(exif):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(pack("p1", jpeg(exif=b"Exif\0\0" + exif), shard_settings()), Packed)


def test_a_tag_that_is_damaged_leaves_the_orientation_in_force():
    content, exif = io.BytesIO(), Image.Exif()
    exif[ORIENTATION], exif[0x010F] = 6, "camera"
    quarters().transpose(STORED_AS[6]).save(content, "JPEG", quality=95, exif=exif)
    damaged = content.getvalue().replace(b"\x01\x0f\x00\x02", b"\x01\x00\x00\x02")
    assert damaged != content.getvalue()
    packed = pack("p1", damaged, shard_settings())
    assert (packed.width, packed.height) == (48, 32) and corners(decoded(packed)) == [0, 1, 2, 3]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_orientation_is_applied_as_pillow_applies_it(orientation):
    content = encoded(quarters(), orientation)
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    packed = pack("p1", content, shard_settings())
    assert (packed.width * 2, packed.height * 2) == wanted.size and corners(decoded(packed)) == corners(wanted)


def test_the_first_picture_of_a_multi_picture_file_is_taken():
    content = io.BytesIO()
    quarters().save(content, "MPO", save_all=True, append_images=[Image.new("RGB", (96, 64))])
    assert corners(decoded(pack("p1", content.getvalue(), shard_settings()))) == [0, 1, 2, 3]


def test_an_empty_file():
    assert reason(b"") == "the file is empty"


@pytest.mark.parametrize("content", [b"no picture at all", b"\xff\xd8\xff", bytes(5000), b"<svg/>"])
def test_a_file_that_is_no_image(content):
    assert reason(content) == "the content is no image"


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_truncated_file(keep):
    content = jpeg(400, 300)
    assert "cannot be decoded" in reason(content[: int(keep * len(content))])


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP"])
def test_another_format_under_a_jpeg_name_is_named(kind):
    assert reason(jpeg(format=kind)) == f"the content is {kind}, not JPEG"


def test_too_small_on_both_sides_of_the_limit():
    assert isinstance(pack("p1", jpeg(16, 90), shard_settings(min_side=16)), Packed)
    assert reason(jpeg(15, 90), min_side=16) == "15 x 90 pixels are below shards.min_side 16"
    assert reason(jpeg(90, 15), min_side=16) == "90 x 15 pixels are below shards.min_side 16"


def test_too_many_pixels_on_both_sides_of_the_limit():
    assert isinstance(pack("p1", jpeg(80, 60), shard_settings(max_pixels=4800)), Packed)
    assert reason(jpeg(80, 60), max_pixels=4799) == "80 x 60 pixels exceed shards.max_pixels 4799"


def test_a_decompression_bomb_is_judged_from_its_header_alone():
    content = jpeg()
    frame = content.index(b"\xff\xc0")  # height and width stand five bytes behind this marker
    header = content[: frame + 5] + (65000).to_bytes(2, "big") + (64000).to_bytes(2, "big") + content[frame + 9 :]
    # Without the pixels: to decode any of them would fail with another reason.
    header = header[: header.index(b"\xff\xda") + 14]
    assert reason(header) == "64000 x 65000 pixels exceed shards.max_pixels 100000000"


def test_the_same_file_gives_the_same_bytes_and_the_quality_counts():
    content = jpeg(seed=3)
    first = pack("p1", content, shard_settings())
    assert pack("p1", content, shard_settings()) == first
    assert len(pack("p1", content, shard_settings(quality=50)).encoded) < len(first.encoded)


def test_colour_keeps_its_full_resolution():
    """Halved chroma would smear the colours of a small photograph."""
    packed = pack("p1", jpeg(), shard_settings())
    with decoded(packed) as image:
        assert {layer[1:3] for layer in image.layer} == {(1, 1)}


def test_damaged_pixels_are_packed_or_refused_and_never_raise():
    rng = np.random.default_rng(0)
    kinds = set()
    for number in range(300):
        content = bytearray(jpeg(mode=("RGB", "L", "CMYK")[number % 3], seed=number))
        for _ in range(rng.integers(1, 8)):
            content[rng.integers(len(content))] = rng.integers(256)
        kinds.add(type(pack("p1", bytes(content), shard_settings())))
    assert kinds == {Packed, Quarantined}
