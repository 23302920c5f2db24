"""A tiny GGUF file, and an installed wheel that holds one."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

Q4_1 = gguf.GGMLQuantizationType.Q4_1
TOKENS = ["<s>", "가", "b"]


def matrix(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, 64)).astype(np.float32)


def write_gguf(path: Path) -> None:
    """Two matrices in Q4_1, a vector in F32, and metadata of each shape."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_token_list(TOKENS)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_1))
    for number, name in enumerate(("token_embd.weight", "blk.0.ffn_up.weight")):
        writer.add_tensor(name, quantize(matrix(number), Q4_1), raw_dtype=Q4_1)
    writer.add_tensor("output_norm.weight", np.arange(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def install_wheel(site: Path, *, name: str) -> Path:
    """Lays what pip would lay into `site`, and returns the weights."""
    weights = site / "weights" / "tiny.gguf"
    weights.parent.mkdir(parents=True)
    write_gguf(weights)
    digest = base64.urlsafe_b64encode(hashlib.sha256(weights.read_bytes()).digest()).rstrip(b"=").decode()
    info = site / f"{name.replace('-', '_')}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (info / "RECORD").write_text(f"weights/tiny.gguf,sha256={digest},{weights.stat().st_size}\n")
    return weights
