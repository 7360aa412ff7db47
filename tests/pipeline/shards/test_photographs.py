"""One file: what a shard stores of it, or why no shard takes it."""

import concurrent.futures
import hashlib
import io
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from pipeline.shards.photographs import Packed, Quarantined, pack, scaled
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


DAMAGED_EXIF = [b"garbage", b"", b"II*\0\xff\xff\xff\x7f", b"MM\0*\0\0\0\x08\xff\xff"]


@pytest.mark.parametrize("exif", DAMAGED_EXIF)
def test_a_damaged_exif_block_loses_no_photograph(exif):
    assert isinstance(pack("p1", jpeg(exif=b"Exif\0\0" + exif), shard_settings()), Packed)


def test_a_damaged_exif_block_warns_of_nothing(tmp_path):
    # In a process of its own: pytest undoes the filter that the module sets when it is imported.
    script = """
import pathlib, sys
from PIL import Image
content = pathlib.Path(sys.argv[1]).read_bytes()
from pipeline.settings import ShardSettings
from pipeline.shards.photographs import pack
print(type(pack("p1", content, ShardSettings(short_side=32, min_side=16))).__name__)
"""
    for number, exif in enumerate(DAMAGED_EXIF):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg(exif=b"Exif\0\0" + exif))
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("Packed\n", "")


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


UNREADABLE = "the content is no JPEG, PNG, GIF or WebP that can be read"


@pytest.mark.parametrize("content", [b"no picture at all", b"\xff\xd8\xff", bytes(5000), b"<svg/>"])
def test_a_file_that_is_no_image(content):
    assert reason(content) == UNREADABLE


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "PPM", "ICO", "JPEG2000", "TGA"])
def test_a_format_that_pillow_knows_and_we_do_not_take(kind):
    assert reason(jpeg(format=kind)) == UNREADABLE


@pytest.mark.parametrize("keep", [0.5, 0.9])
@pytest.mark.parametrize("short_side", [32, "original"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_a_truncated_file(kind, short_side, keep):
    content = jpeg(400, 300, format=kind)
    assert "cannot be decoded" in reason(content[: int(keep * len(content))], short_side=short_side)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
@pytest.mark.parametrize("short_side", [32, "original"])
def test_other_formats_under_a_jpeg_name_are_taken(kind, short_side):
    content = io.BytesIO()
    quarters().save(content, kind, **({"lossless": True} if kind == "WEBP" else {}))
    packed = pack("p1", content.getvalue(), shard_settings(short_side=short_side))
    image = decoded(packed)
    assert (image.format, image.mode) == ("JPEG", "RGB")
    assert (packed.width, packed.height) == image.size == ((48, 32) if short_side == 32 else (96, 64))
    assert corners(image) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_the_first_picture_of_an_animation_is_taken(kind):
    content = io.BytesIO()
    frames = [quarters().transpose(Image.Transpose.ROTATE_180), Image.new("RGB", (96, 64))]
    quarters().save(content, kind, save_all=True, append_images=frames, duration=100)
    assert Image.open(io.BytesIO(content.getvalue())).n_frames == 3
    assert corners(decoded(pack("p1", content.getvalue(), shard_settings()))) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_exif_orientation_is_applied_in_other_formats_too(kind, orientation):
    content, exif = io.BytesIO(), Image.Exif()
    exif[ORIENTATION] = orientation
    quarters().transpose(STORED_AS[orientation]).save(content, kind, exif=exif)
    packed = pack("p1", content.getvalue(), shard_settings())
    assert (packed.width, packed.height) == (48, 32) and corners(decoded(packed)) == [0, 1, 2, 3]


def cut_out(mode: str) -> Image.Image:
    """A red square on a ground that is blue, or black, where one looks past its transparency."""
    image = Image.new("RGBA", (80, 60), (30, 30, 230, 0))
    image.paste((230, 30, 30, 255), (20, 10, 60, 50))
    if mode == "P":
        flat = image.convert("RGB").quantize(2)
        flat.info["transparency"] = flat.getpixel((0, 0))
        return flat
    if mode == "RGB":
        flat = image.convert("RGB")
        flat.info["transparency"] = (30, 30, 230)
        return flat
    return image.convert(mode)


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGBA"), ("PNG", "LA"), ("PNG", "P"), ("PNG", "RGB"), ("GIF", "P"), ("WEBP", "RGBA")]
)
def test_what_is_transparent_is_laid_over_white(kind, mode):
    content = io.BytesIO()
    image = cut_out(mode)
    image.save(content, kind, **{name: image.info[name] for name in ("transparency",) if name in image.info})
    with Image.open(io.BytesIO(content.getvalue())) as stored:
        assert stored.has_transparency_data
    image = decoded(pack("p1", content.getvalue(), shard_settings()))
    assert min(image.getpixel((3, 3))) > 245
    middle = np.array(image.getpixel((21, 16)), int)
    assert np.abs(middle - ((90, 90, 90) if mode == "LA" else (230, 30, 30))).max() < 12


def test_half_transparent_is_half_white():
    content = io.BytesIO()
    Image.new("RGBA", (80, 60), (200, 100, 0, 128)).save(content, "PNG")
    pixel = np.array(decoded(pack("p1", content.getvalue(), shard_settings())).getpixel((20, 16)), int)
    assert np.abs(pixel - (227, 177, 127)).max() < 4


def test_16_bits_a_channel():
    content = io.BytesIO()
    Image.fromarray(np.full((60, 80), 30000, np.uint16)).save(content, "PNG")
    assert reason(content.getvalue()) == "it cannot be decoded: greyscale of 16 bits is not taken"
    rows = b"".join(b"\0" + bytes((200, 7, 90, 7, 40, 7)) * 80 for _ in range(60))
    packed = pack("p1", png(80, 60, 16, 2, zlib.compress(rows)), shard_settings())
    assert np.abs(np.array(decoded(packed).getpixel((20, 16)), int) - (200, 90, 40)).max() < 4


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(96, 64), (384, 256), (500, 330)])
def test_a_progressive_jpeg_is_packed_like_a_baseline_one(mode, size):
    contents = [io.BytesIO(), io.BytesIO()]
    for content, progressive in zip(contents, (False, True)):
        quarters(*size).convert(mode).save(content, "JPEG", quality=95, progressive=progressive)
    baseline, progressive = (pack("p1", content.getvalue(), shard_settings()) for content in contents)
    assert b"\xff\xc2" in contents[1].getvalue() and baseline.encoded == progressive.encoded


def inked(transform: int | None, colour=(200, 90, 40)) -> bytes:
    """A CMYK JPEG: as Adobe's programs write it, without (0) or with (2) conversion to YCCK; or another's (None)."""
    ink = Image.new("RGB", (80, 60), colour).convert("CMYK")
    # Less of the colours and some black instead, so that all four channels count.
    cyan, magenta, yellow, black = (int(value) for value in ink.getpixel((0, 0)))
    black = 30
    cyan, magenta, yellow = (round(255 - (255 - value) * 255 / (255 - black)) for value in (cyan, magenta, yellow))
    channels = np.array([cyan, magenta, yellow, black], np.uint8)
    if transform == 2:
        colours = tuple(int(value) for value in channels[:3])
        converted = Image.new("RGB", (1, 1), colours).convert("YCbCr").getpixel((0, 0))
        channels = np.array([*(255 - value for value in converted), black], np.uint8)
    if transform is None:
        channels = 255 - channels  # Pillow inverts whatever it writes
    content = io.BytesIO()
    Image.fromarray(np.tile(channels, (60, 80, 1)), "CMYK").save(content, "JPEG", quality=98)
    content = content.getvalue()
    marker = content.index(b"\xff\xee\0\x0eAdobe")
    if transform is None:
        return content[:marker] + content[marker + 16 :]
    return content[: marker + 15] + bytes([transform]) + content[marker + 16 :]


@pytest.mark.parametrize("transform", [0, 2, None])
@pytest.mark.parametrize("short_side", [32, "original"])
def test_cmyk_becomes_rgb_whoever_wrote_it(transform, short_side):
    content = inked(transform)
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode == "CMYK" and image.info.get("adobe_transform") == transform
    image = decoded(pack("p1", content, shard_settings(short_side=short_side)))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image, float).mean(axis=(0, 1)) - (200, 90, 40)).max() < 6


@pytest.mark.parametrize("kind", ["JPEG", "GIF"])
def test_a_comment_is_not_copied(kind):
    packed = pack("p1", jpeg(format=kind, comment=b"somebody's secret"), shard_settings())
    assert b"secret" not in packed.encoded and "comment" not in decoded(packed).info


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


def png(width: int, height: int, depth: int, colour: int, data: bytes, *more: bytes) -> bytes:
    """A PNG from its parts; `more` are whole chunks before the pixels."""

    def chunk(kind, body):
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((depth, colour, 0, 0, 0))
    texts = b"".join(chunk(b"zTXt", body) for body in more)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + texts + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def gif(canvas: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """A GIF that holds no pixels."""
    sizes = [b"".join(side.to_bytes(2, "little") for side in size) for size in (canvas, frame)]
    return b"GIF89a" + sizes[0] + b"\xf0\0\0" + bytes(6) + b"\x2c\0\0\0\0" + sizes[1] + b"\0\x08\xff\0\x3b"


def webp(chunk: bytes, body: bytes) -> bytes:
    """The header of a WebP, without pixels."""
    return b"RIFF" + (12 + len(body)).to_bytes(4, "little") + b"WEBP" + chunk + len(body).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (png(50000, 40000, 8, 2, b""), "50000 x 40000"),
        (gif((60000, 50000), (60000, 50000)), "60000 x 50000"),
        (gif((10, 10), (60000, 50000)), "60000 x 50000"),
        (webp(b"VP8X", bytes(4) + (16382).to_bytes(3, "little") + (15999).to_bytes(3, "little")), "16383 x 16000"),
        (webp(b"VP8L", b"\x2f" + (16382 | 15999 << 14).to_bytes(4, "little") + bytes(9)), "16383 x 16000"),
        (webp(b"VP8 ", b"\x30\x01\0\x9d\x01\x2a" + bytes((0xFF, 0x3F, 0x80, 0x3E))), "16383 x 16000"),
    ],
)
@pytest.mark.parametrize("short_side", [32, "original"])
def test_a_bomb_of_another_format_is_judged_from_its_header_alone(content, size, short_side):
    # Without the pixels: to decode any of them would fail with another reason.
    assert reason(content, short_side=short_side) == f"{size} pixels exceed shards.max_pixels 100000000"


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}])
@pytest.mark.parametrize(("size", "limit"), [((80, 61), 4880), ((61, 80), 4880)])
def test_the_size_of_each_kind_of_webp_is_read_as_pillow_reads_it(options, size, limit):
    content = jpeg(*size, format="WEBP", **options)
    packed = pack("p1", content, shard_settings(max_pixels=limit, short_side="original"))
    assert (packed.width, packed.height) == size
    assert reason(content, max_pixels=limit - 1).startswith(f"{size[0]} x {size[1]} pixels exceed")


def test_a_text_chunk_that_inflates_without_end():
    bomb = b"comment\0\0" + zlib.compress(bytes(80 * 2**20), 9)
    refused = reason(png(80, 60, 8, 0, zlib.compress(bytes(81 * 60)), bomb))
    assert "cannot be decoded" in refused and "Decompressed data too large" in refused
    assert PngImagePlugin.MAX_TEXT_MEMORY <= 64 * 2**20  # many small ones are bounded too


def test_a_picture_that_is_too_long_for_a_jpeg():
    assert isinstance(pack("p1", png(65500, 16, 8, 0, zlib.compress(bytes(65501 * 16))), shard_settings()), Packed)
    long = png(65501, 16, 8, 0, zlib.compress(bytes(65502 * 16)))
    assert reason(long) == "65501 x 16 pixels make a picture longer than the 65500 that a JPEG can have"


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


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (jpeg(80, 60), (80, 60)),
        (jpeg(80, 60, mode="L"), (80, 60)),
        (jpeg(81, 61, progressive=True), (81, 61)),
        (jpeg(20, 300, comment=b"kept"), (20, 300)),
        (encoded(quarters(), 1), (96, 64)),
        (jpeg(80, 60, format="MPO", save_all=True, append_images=[Image.new("RGB", (80, 60))]), (80, 60)),
    ],
)
def test_original_keeps_the_bytes_of_an_upright_jpeg(content, size):
    packed = pack("p1", content, shard_settings(short_side="original"))
    assert packed.encoded == content and (packed.width, packed.height) == size
    assert packed.sha256 == packed.source_sha256


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_original_turns_a_jpeg_that_lies_on_its_side(mode, orientation):
    content = encoded(quarters().transpose(STORED_AS[orientation]).convert(mode), orientation)
    packed = pack("p1", content, shard_settings(short_side="original"))
    image = decoded(packed)
    assert (packed.width, packed.height) == image.size == (96, 64) and image.mode == "RGB"
    assert packed.sha256 != packed.source_sha256 == hashlib.sha256(content).hexdigest()
    assert ORIENTATION not in image.getexif()
    if mode != "L":
        assert corners(image) == [0, 1, 2, 3]


def test_original_stores_with_the_quality_of_the_settings_what_it_stores_anew():
    low, high = (pack("p1", jpeg(mode="CMYK"), shard_settings(short_side="original", quality=q)) for q in (50, 95))
    assert len(low.encoded) < len(high.encoded)


def test_original_keeps_no_lossless_jpeg_because_tensorflow_reads_none():
    content = bytes.fromhex(
        "ffd8ffe000104a46494600010100000100010000ffc3000b080010001001011100ffc400150001010000000000000000"
        "0000000000000007ffda0008010100010000a40000000000000000000000000000000000000000000000000000000000000000ffd9"
    )
    packed = pack("p1", content, shard_settings(short_side="original"))
    assert packed.encoded != content and decoded(packed).getpixel((5, 5)) == (200, 200, 200)


def detailed(width, height, seed=0) -> Image.Image:
    """A picture with structure of every size, as photographs have it."""
    rng, image = np.random.default_rng(seed), np.full((height, width, 3), 128.0)
    for cells in (3, 9, 27, 81):
        noise = rng.uniform(0, 255, (cells, cells, 3)).astype(np.uint8)
        layer = Image.fromarray(noise).resize((width, height), Image.BICUBIC)
        image += (np.asarray(layer, float) - 128) * cells**-0.3
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("size", "short_side", "scale"),
    [
        ((300, 300), 112, 1),  # 2 would leave too little for the filter
        ((335, 335), 112, 1),
        ((336, 400), 112, 2),
        ((671, 700), 112, 2),
        ((672, 701), 112, 4),
        ((224, 301), 112, 2),  # exactly there
        ((225, 301), 112, 1),
        ((897, 448), 112, 4),
        ((1023, 896), 112, 8),
        ((999, 897), 112, 4),
        ((2001, 1345), 112, 8),
        ((112, 300), 112, 1),
        ((80, 90), 112, 1),
        ((601, 603), "original", 1),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_the_decoder_reduces_as_far_as_leaves_room_for_the_filter(size, short_side, scale, mode):
    with Image.open(io.BytesIO(jpeg(*size, mode=mode))) as image:
        pixels = scaled(image, short_side)
        # libjpeg rounds up.
        assert image.size == tuple(-(-side // scale) for side in size)
    side = min(size) if short_side == "original" else min(short_side, *size)
    assert pixels.mode == "RGB" and min(pixels.size) == side
    assert abs(max(pixels.size) - max(size) * side / min(size)) < 1
    if min(image.size) == side:
        assert pixels.size == image.size  # not filtered once more for a longer side that libjpeg rounded up


@pytest.mark.parametrize("size", [(336, 336), (339, 500), (511, 343), (673, 1001), (1351, 1347), (1801, 1345)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_reduced_decode_gives_the_picture_that_a_full_one_gives(size, orientation):
    """An edge that is off by a fraction of a pixel would show here, and so would a second blur."""
    image = detailed(*size)
    content = io.BytesIO()
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image.save(content, "JPEG", quality=95, subsampling=0, exif=exif)
    full = ImageOps.exif_transpose(Image.open(io.BytesIO(content.getvalue())))
    packed = pack("p1", content.getvalue(), shard_settings(short_side=112, quality=100))
    wanted = np.asarray(full.resize((packed.width, packed.height), Image.LANCZOS), float)
    error = np.mean((np.asarray(decoded(packed), float) - wanted) ** 2)
    assert 10 * np.log10(255**2 / error) > 42


def test_any_number_of_threads_gives_the_same_bytes():
    kinds = [{}, {"mode": "L"}, {"mode": "CMYK"}, {"progressive": True}]
    kinds += [{"format": kind} for kind in ("PNG", "GIF", "WEBP")]
    contents = [jpeg(700 + n, 500 + 3 * n, seed=n, **kinds[n % len(kinds)]) for n in range(28)]
    contents += [encoded(quarters(300, 200), n % 8 + 1) for n in range(8)]
    contents += [content[: len(content) // 2] for content in contents[:7]]
    alone = [pack("p1", content, shard_settings()) for content in contents]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda content: pack("p1", content, shard_settings()), contents * 4))
    assert together == alone * 4


@pytest.mark.parametrize("short_side", [32, "original"])
@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "GIF", "WEBP"])
def test_damaged_content_is_packed_or_refused_and_never_raises(kind, short_side):
    rng = np.random.default_rng(0)
    results = set()
    modes = {"JPEG": ("RGB", "L", "CMYK"), "PNG": ("RGB", "RGBA", "P", "LA"), "WEBP": ("RGB", "RGBA")}
    modes = modes.get(kind, ("RGB",))
    several = {"save_all": True, "append_images": [Image.new("RGB", (80, 60))]}
    for number in range(150):
        options = several if number % 2 and kind != "JPEG" else {}
        content = bytearray(jpeg(mode=modes[number % len(modes)], seed=number, format=kind, **options))
        for _ in range(rng.integers(0, 4)):
            content[rng.integers(len(content))] = rng.integers(256)
        packed = pack("p1", bytes(content), shard_settings(short_side=short_side))
        if isinstance(packed, Packed):
            assert decoded(packed).size == (packed.width, packed.height)
        results.add(type(packed))
    assert results == {Packed, Quarantined}
