"""TFRecord files by position: what TensorFlow writes and reads, on any storage, with each record's place.

Each record is framed as: length (uint64, little endian), its checksum, the payload, its checksum; a checksum is a
masked CRC-32C (tensorflow/core/lib/io/record_writer.h). TensorFlow itself tells no offsets, and opens only what its own
file systems reach.
"""

import dataclasses
import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

OVERHEAD = 16
"""Bytes that framing adds to a payload."""

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


class DamagedError(ValueError):
    """A file that is no TFRecord file, or not the one that was written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One record and where it lies.

    Attributes:
        offset: Bytes before its frame.
        payload: Its content; the frame is `OVERHEAD` longer.
    """

    offset: int
    payload: bytes

    @property
    def length(self) -> int:
        """Bytes of the frame."""
        return len(self.payload) + OVERHEAD


class Writer:
    """Writes records one after the other and digests the file on the way.

    Args:
        stream: Where the bytes go; the caller closes it.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._digest = hashlib.sha256()
        self.bytes = 0
        self.records = 0

    def write(self, payload: bytes) -> Record:
        """Appends a record and says where it lies."""
        length = len(payload)
        header = _HEADER.pack(length, _masked_crc(length.to_bytes(8, "little")))
        footer = _FOOTER.pack(_masked_crc(payload))
        for part in (header, payload, footer):
            self._stream.write(part)
            self._digest.update(part)
        record = Record(self.bytes, payload)
        self.bytes += length + OVERHEAD
        self.records += 1
        return record

    @property
    def sha256(self) -> str:
        """Digest of the file so far, in hex."""
        return self._digest.hexdigest()


class Digested:
    """A stream that digests what is read from it.

    Args:
        stream: Where the bytes come from; the caller closes it.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next bytes, as the stream gives them."""
        content = self._stream.read(size)
        self._digest.update(content)
        return content

    @property
    def sha256(self) -> str:
        """Digest of what was read, in hex."""
        return self._digest.hexdigest()


def read(stream: BinaryIO, compressed: bool = False) -> Iterator[Record]:
    """The records of a file, each checked against its checksums.

    Args:
        stream: The file's bytes.
        compressed: Whether they are gzipped, as TFX writes examples; offsets are then those of the plain bytes.

    Raises:
        DamagedError: The bytes are not those of a TFRecord file; the text says at which record and offset.
    """
    if compressed:
        stream = gzip.GzipFile(fileobj=stream)
    number = 0
    try:
        for found in survey(stream):
            if isinstance(found, DamagedError):
                raise found
            yield found
            number += 1
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedError(f"the compression is broken behind record {number}: {error}") from error


def survey(stream: BinaryIO) -> Iterator[Record | DamagedError]:
    """Each record of a file, or in its place what is wrong with it: unlike `read`, this goes on behind a damaged one.

    Args:
        stream: The file's bytes, uncompressed.

    Yields:
        One item a record. A payload that does not fit its checksum is passed over; behind a length that does not, or a
        record that is cut off, the next one cannot be found, and the error is the last item.
    """
    offset = number = 0
    while header := stream.read(_HEADER.size):
        where = f"record {number} at byte {offset}"
        if len(header) < _HEADER.size:
            yield DamagedError(f"{where} is cut off")
            return
        length, checksum = _HEADER.unpack(header)
        if checksum != _masked_crc(header[:8]):
            yield DamagedError(f"the length of {where} does not fit its checksum")
            return
        body = stream.read(length + _FOOTER.size)
        if len(body) < length + _FOOTER.size:
            yield DamagedError(f"{where} is cut off")
            return
        payload = body[:length]
        fits = _FOOTER.unpack(body[length:])[0] == _masked_crc(payload)
        yield Record(offset, payload) if fits else DamagedError(f"{where} does not fit its checksum")
        offset += length + OVERHEAD
        number += 1


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
