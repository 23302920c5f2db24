"""A GGUF model with its quantized matrices in another format. Imports gguf: only what quantizes imports this."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType
from gguf.gguf_reader import ReaderField, ReaderTensor
from gguf.quants import dequantize, quantize

UNQUANTIZED = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
WRITTEN_BY_THE_WRITER = ("GGUF.", Keys.General.ARCHITECTURE)


def requantize(source: Path, target: Path, *, matrix_format: str) -> None:
    """Writes `source` to `target` with every quantized matrix in `matrix_format`, a GGML name as "Q4_0".

    Vectors and matrices that `source` keeps in a floating-point format stay as they are.
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields[Keys.General.ARCHITECTURE].contents())
    try:
        for key, field in reader.fields.items():
            if not key.startswith(WRITTEN_BY_THE_WRITER):
                _copy_field(writer, key, field, matrix_format)
        for tensor in reader.tensors:
            _add_tensor(writer, tensor, GGMLQuantizationType[matrix_format])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _copy_field(writer: GGUFWriter, key: str, field: ReaderField, matrix_format: str) -> None:
    kind, *inner = field.types
    value = field.contents()
    if key == Keys.General.FILE_TYPE:
        value = int(LlamaFileType[f"MOSTLY_{matrix_format}"])
    writer.add_key_value(key, value, kind, inner[-1] if kind == GGUFValueType.ARRAY else None)


def _add_tensor(writer: GGUFWriter, tensor: ReaderTensor, wanted: GGMLQuantizationType) -> None:
    if tensor.tensor_type in UNQUANTIZED:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        return
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
