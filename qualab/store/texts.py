"""Answers' texts as bytes: UTF-8, compressed with a dictionary of the comparison's own prompts where that is shorter.

The first byte says how the rest is packed: 0 as it is, 1 zstd, 2 zstd with the dictionary of ASCII texts, 3 zstd with
the dictionary of other scripts. One dictionary cannot serve both: its entropy tables fit one alphabet (Korean answers
took 1.7 times the room with a mixed one). Frames carry neither magic number, checksum nor dictionary id.

4 stands for a text that begins like its twin, the other arm's text in the same place: two bytes tell how many bytes
they share, then comes the rest, packed as above. A drafter leaves many answers as they are, the others up to a token.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import zstandard

from qualab.model.wording import valid_text

ASCII, OTHER = SCRIPTS = (0, 1)
SHARED = b"\4"
_PLAIN, _ZSTD, _WITH_DICTIONARY = 0, 1, 2
_SMALLEST = 12
"""Bytes below which zstd's own frame costs more than it saves."""
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    5, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=True, write_checksum=False, write_dict_id=False
)

Dictionaries = Mapping[int, zstandard.ZstdCompressionDict]


def script_of(text: str, raw: bytes) -> int:
    """Which alphabet prevails, told from how many bytes UTF-8 takes a character."""
    return ASCII if 4 * len(raw) <= 5 * len(text) else OTHER


class TextCodec(threading.local):
    """How one comparison's texts are packed. Threads may share it: each gets compressors of its own."""

    def __init__(self, dictionaries: Mapping[int, bytes]) -> None:
        """Dictionaries by script, as `training.py` makes them."""
        trained = {script: zstandard.ZstdCompressionDict(data) for script, data in dictionaries.items()}
        for dictionary in trained.values():
            dictionary.precompute_compress(compression_params=_PARAMETERS)
        self.unpacker = Unpacker(trained)
        self.packer = Packer(trained, self.unpacker)


class Packer:
    """Texts to bytes, in one thread."""

    def __init__(self, dictionaries: Dictionaries, unpacker: Unpacker) -> None:
        plain = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
        self._compressors = [(bytes([_ZSTD]), plain)] * len(SCRIPTS)
        for script, trained in dictionaries.items():
            compressor = zstandard.ZstdCompressor(dict_data=trained, compression_params=_PARAMETERS)
            self._compressors[script] = (bytes([_WITH_DICTIONARY + script]), compressor)
        self._unpacker = unpacker

    def pack(self, text: str, twin: bytes | None = None) -> bytes:
        """`twin`: the other arm's text, packed by itself."""
        raw = _utf8(text)
        script = script_of(text, raw)
        if twin is not None and 3 * (n_shared := _shared_bytes(raw, self._unpacker.raw(twin))) > len(raw):
            return SHARED + n_shared.to_bytes(2) + self._packed(raw[n_shared:], script)
        return self._packed(raw, script)

    def _packed(self, raw: bytes, script: int) -> bytes:
        if len(raw) < _SMALLEST:
            return b"\0" + raw
        tag, compressor = self._compressors[script]
        packed = compressor.compress(raw)
        return tag + packed if len(packed) < len(raw) else b"\0" + raw


class Unpacker:
    """Bytes to texts, in one thread."""

    def __init__(self, dictionaries: Dictionaries) -> None:
        magicless = zstandard.FORMAT_ZSTD1_MAGICLESS
        self._decompressors = {_ZSTD: zstandard.ZstdDecompressor(format=magicless)}
        for script, trained in dictionaries.items():
            decompressor = zstandard.ZstdDecompressor(dict_data=trained, format=magicless)
            self._decompressors[_WITH_DICTIONARY + script] = decompressor

    def unpack(self, packed: bytes, twin: bytes | None = None) -> str:
        return self.raw(packed, twin).decode()

    def raw(self, packed: bytes, twin: bytes | None = None) -> bytes:
        """The text's UTF-8."""
        if packed[0] == _PLAIN:
            return packed[1:]
        if packed[0] == SHARED[0] and twin is not None:
            return self.raw(twin)[: int.from_bytes(packed[1:3])] + self.raw(packed[3:])
        return self._decompressors[packed[0]].decompress(packed[1:])


def _shared_bytes(raw: bytes, other: bytes) -> int:
    """How many bytes two texts begin with in common, as far as two bytes can count."""
    low, high = 0, min(len(raw), len(other), 65_535)
    if raw[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if raw[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return valid_text(text).encode()
