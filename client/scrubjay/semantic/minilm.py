"""BERT sentence models such as all-MiniLM-L6-v2, run from a directory with numpy and tokenizers alone.

The directory is the one that Hugging Face publishes: config.json, tokenizer.json, model.safetensors.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

MAX_TOKENS = 256
"""Tokens of a text that are embedded, as in training; the rest of a longer text is ignored."""
BATCH = 32
"""Texts that are embedded at once, which bounds the memory it takes."""
EMBEDDINGS = ("word", "position", "token_type")

Array = NDArray[np.float32]


class MiniLM:
    """Sentence vectors of length one: the mean over the tokens, or the first token's if the model's config says so."""

    def __init__(self, directory: str | Path) -> None:
        folder = Path(directory)
        config = json.loads((folder / "config.json").read_text())
        if config.get("model_type", "bert") != "bert":
            raise ValueError(f"it is of type {config['model_type']!r}, and only bert runs from a directory")
        self.name = f"{Path(config.get('_name_or_path') or folder).name}@{_fingerprint(folder / 'model.safetensors')}"
        self.dimensions = int(config["hidden_size"])
        self._heads = int(config["num_attention_heads"])
        self._layers = int(config["num_hidden_layers"])
        self._epsilon = float(config["layer_norm_eps"])
        pooling = folder / "1_Pooling/config.json"
        self._takes_first = pooling.exists() and json.loads(pooling.read_text()).get("pooling_mode_cls_token", False)
        self._weights = read_safetensors(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [
            vector.astype(np.float16).tobytes()
            for start in range(0, len(texts), BATCH)
            for vector in self._forward(list(texts[start : start + BATCH]))
        ]

    def _forward(self, texts: list[str]) -> Array:
        """The vectors of a batch, whose tokens are concatenated so that no padding is computed."""
        ids = [each.ids for each in self._tokenizer.encode_batch(texts)]
        starts = itertools.accumulate(map(len, ids), initial=0)
        spans = [slice(start, start + len(each)) for start, each in zip(starts, ids, strict=False)]
        positions = np.concatenate([np.arange(len(each)) for each in ids])
        word, position, kind = (self._weights[f"embeddings.{name}_embeddings.weight"] for name in EMBEDDINGS)
        state = self._normalize(word[np.concatenate(ids)] + position[positions] + kind[0], "embeddings.LayerNorm")
        for layer in range(self._layers):
            state = self._encode_layer(state, spans, f"encoder.layer.{layer}")
        pooled = np.array([state[span.start] if self._takes_first else state[span].sum(axis=0) for span in spans])
        return np.asarray(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), np.float32)

    def _encode_layer(self, state: Array, spans: list[slice], layer: str) -> Array:
        attended = self._dense(self._attend(state, spans, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
        state = self._normalize(state + attended, f"{layer}.attention.output.LayerNorm")
        inner = _gelu(self._dense(state, f"{layer}.intermediate.dense"))
        return self._normalize(state + self._dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")

    def _attend(self, state: Array, spans: list[slice], at: str) -> Array:
        query, key, value = (self._by_head(self._dense(state, f"{at}.{part}")) for part in ("query", "key", "value"))
        query = query / math.sqrt(query.shape[-1])
        mixed = np.empty_like(query)
        for span in spans:
            fit = query[:, span] @ key[:, span].swapaxes(-1, -2)
            fit = np.exp(fit - fit.max(axis=-1, keepdims=True))
            mixed[:, span] = fit @ value[:, span] / fit.sum(axis=-1, keepdims=True)
        return np.asarray(mixed.swapaxes(0, 1).reshape(state.shape), np.float32)

    def _by_head(self, state: Array) -> Array:
        return state.reshape(len(state), self._heads, -1).swapaxes(0, 1)

    def _dense(self, state: Array, at: str) -> Array:
        return np.asarray(state @ self._weights[f"{at}.weight"].T + self._weights[f"{at}.bias"], np.float32)

    def _normalize(self, state: Array, at: str) -> Array:
        centred = state - state.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._epsilon)
        return np.asarray(centred / scale * self._weights[f"{at}.weight"] + self._weights[f"{at}.bias"], np.float32)


def read_safetensors(path: Path) -> dict[str, Array]:
    """The float32 arrays of a file, which has a JSON header with the offset of each, then the arrays."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]], np.float32)
        .reshape(entry["shape"])
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
    }  # fmt: skip


def _fingerprint(path: Path) -> str:
    """A hash that differs for other weights: of the size, and of 4 KB of every megabyte."""
    digest = blake2b(str(path.stat().st_size).encode(), digest_size=6)
    with path.open("rb") as file:
        for start in range(0, path.stat().st_size, 2**20):
            file.seek(start)
            digest.update(file.read(4096))
    return digest.hexdigest()


def _gelu(state: Array) -> Array:
    """GELU in a single array: allocating more would cost more than the arithmetic."""
    curve = state * state
    curve *= 0.044715
    curve += 1
    curve *= state
    curve *= math.sqrt(2 / math.pi)
    np.tanh(curve, out=curve)
    curve += 1
    curve *= state
    curve *= 0.5
    return curve
