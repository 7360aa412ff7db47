"""TFRecord files: TensorFlow's own bytes, with the place of each record, and every damage noticed."""

import gzip
import hashlib
import io
import random

import pytest
import tensorflow as tf

from models import tfrecords

PAYLOADS = [b"", b"\0", b"one", b"", bytes(range(256)), "Ärmel ☃".encode()]


def random_payloads(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 2, 11, 12, 16, 17, 255, 4096, 70_000])) for _ in range(rng.randrange(30))]


def written(payloads) -> bytes:
    stream = io.BytesIO()
    writer = tfrecords.Writer(stream)
    for payload in payloads:
        writer.write(payload)
    return stream.getvalue()


def written_by_tensorflow(path, payloads, compression: str = "") -> bytes:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for payload in payloads:
            writer.write(payload)
    return path.read_bytes()


def payloads_of(content: bytes, compressed: bool = False) -> list[bytes]:
    return [record.payload for record in tfrecords.read(io.BytesIO(content), compressed)]


@pytest.mark.parametrize("payloads", [[], PAYLOADS, *map(random_payloads, range(8))])
def test_the_bytes_are_those_that_tensorflow_writes(tmp_path, payloads):
    assert written(payloads) == written_by_tensorflow(tmp_path / "file", payloads)


@pytest.mark.parametrize("payloads", [[], PAYLOADS, random_payloads(20)])
def test_tensorflow_reads_what_is_written(tmp_path, payloads):
    (tmp_path / "file").write_bytes(written(payloads))
    assert list(tf.data.TFRecordDataset(str(tmp_path / "file")).as_numpy_iterator()) == payloads


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("payloads", [[], PAYLOADS, random_payloads(30)])
def test_what_tensorflow_writes_is_read(tmp_path, payloads, compression):
    content = written_by_tensorflow(tmp_path / "file", payloads, compression)
    assert payloads_of(content, compression == "GZIP") == payloads


@pytest.mark.parametrize("payloads", [[], PAYLOADS, random_payloads(40)])
def test_places_sizes_and_digest_are_those_of_the_file(payloads):
    stream = io.BytesIO()
    writer = tfrecords.Writer(stream)
    places = [writer.write(payload) for payload in payloads]
    content = stream.getvalue()
    assert (writer.records, writer.bytes) == (len(payloads), len(content))
    assert writer.sha256 == hashlib.sha256(content).hexdigest()
    for place, payload in zip(places, payloads, strict=True):
        assert place.length == len(payload) + tfrecords.OVERHEAD
        assert payloads_of(content[place.offset : place.offset + place.length]) == [payload]
    assert list(tfrecords.read(io.BytesIO(content))) == places
    # Offsets in a compressed file are those of its plain bytes.
    assert list(tfrecords.read(io.BytesIO(gzip.compress(content)), compressed=True)) == places


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_noticed(bit):
    content = written(PAYLOADS)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        with pytest.raises(tfrecords.DamagedError, match=r"record \d+ at byte \d+"):
            payloads_of(bytes(damaged))


def test_damage_is_told_where_it_is():
    content = bytearray(written([b"aaaa", b"bbbb", b"cccc"]))
    content[20 + 12] ^= 1  # the first byte of the second payload
    stream = tfrecords.read(io.BytesIO(content))
    assert next(stream) == tfrecords.Record(0, b"aaaa")
    with pytest.raises(tfrecords.DamagedError, match="record 1 at byte 20 does not fit its checksum"):
        next(stream)


def surveyed(content) -> list:
    """Payloads, and the text of what is wrong."""
    return [
        str(found) if isinstance(found, tfrecords.DamagedError) else found.payload
        for found in tfrecords.survey(io.BytesIO(content))
    ]


@pytest.mark.parametrize("payloads", [[], PAYLOADS, random_payloads(50)])
def test_a_survey_of_a_whole_file_is_what_is_read(payloads):
    assert surveyed(written(payloads)) == payloads


def test_a_survey_goes_on_behind_damaged_payloads():
    content = bytearray(written([b"aaaa", b"bbbb", b"cccc", b"dddd"]))
    content[20 + 12] ^= 1  # a payload
    content[60 + 16] ^= 1  # the checksum of one
    assert surveyed(content) == [
        b"aaaa", "record 1 at byte 20 does not fit its checksum", b"cccc", "record 3 at byte 60 does not fit its checksum",
    ]  # fmt: skip


@pytest.mark.parametrize("position", [0, 7, 8, 11])
def test_a_survey_ends_where_a_length_is_damaged(position):
    content = bytearray(written([b"aaaa", b"bbbb", b"cccc"]))
    content[20 + position] ^= 1
    assert surveyed(content) == [b"aaaa", "the length of record 1 at byte 20 does not fit its checksum"]


@pytest.mark.parametrize("length", [21, 31, 32, 39])
def test_a_survey_ends_where_a_file_is_cut_off(length):
    assert surveyed(written([b"aaaa", b"bbbb", b"cccc"])[:length]) == [b"aaaa", "record 1 at byte 20 is cut off"]


def test_a_digested_stream_is_that_of_the_file():
    content = written(PAYLOADS)
    stream = tfrecords.Digested(io.BytesIO(content))
    assert [record.payload for record in tfrecords.read(stream)] == PAYLOADS
    assert stream.sha256 == hashlib.sha256(content).hexdigest()


def test_every_cut_but_one_between_records_is_noticed():
    content = written(PAYLOADS)
    borders = {record.offset: number for number, record in enumerate(tfrecords.read(io.BytesIO(content)))}
    for length in range(len(content)):
        if length in borders:
            assert payloads_of(content[:length]) == PAYLOADS[: borders[length]]
        else:
            with pytest.raises(tfrecords.DamagedError, match="is cut off"):
                payloads_of(content[:length])


@pytest.mark.parametrize("behind", [b"\0", b"\0" * 12, b"\0" * 16, b"text that is no record"])
def test_what_lies_behind_the_last_record_is_noticed(behind):
    with pytest.raises(tfrecords.DamagedError, match="record 1 at byte 19"):
        payloads_of(written([b"one"]) + behind)


@pytest.mark.parametrize("content", [b"x", b"\xff\xd8\xff\xe0JFIF and so on", bytes(12), b"PAR1" * 10])
def test_another_kind_of_file_is_none(content):
    with pytest.raises(tfrecords.DamagedError, match="record 0 at byte 0"):
        payloads_of(content)


def test_every_flipped_byte_of_a_compressed_file_is_noticed_or_changes_no_record(tmp_path):
    """A gzip header has bytes that say nothing of the content: the time, the system it was made on."""
    content = written_by_tensorflow(tmp_path / "file", PAYLOADS, "GZIP")
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        try:
            assert payloads_of(bytes(damaged), compressed=True) == PAYLOADS and 3 < position < 10
        except tfrecords.DamagedError:
            pass


def test_every_cut_of_a_compressed_file_is_noticed(tmp_path):
    content = written_by_tensorflow(tmp_path / "file", PAYLOADS, "GZIP")
    for length in range(1, len(content)):
        with pytest.raises(tfrecords.DamagedError):
            payloads_of(content[:length], compressed=True)


def test_a_plain_file_that_should_be_compressed_is_none():
    with pytest.raises(tfrecords.DamagedError, match="compression is broken"):
        payloads_of(written(PAYLOADS), compressed=True)
