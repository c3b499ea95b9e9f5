"""BERT sentence models such as all-MiniLM-L6-v2, run from a directory with onnxruntime.

The directory is the one that Hugging Face publishes: config.json, tokenizer.json, model.safetensors. The graph is built
from the weights when the model is loaded, so that no other file is needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from scrubjay.semantic.familiarity import familiarity

MAX_TOKENS = 256
"""Tokens of a text that are embedded, as in training; the rest of a longer text is ignored."""
OPSET, IR_VERSION = 20, 9
"""Versions of ONNX that have all operators of the graph, and that onnxruntime 1.17 and later read."""
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
        pooling = folder / "1_Pooling/config.json"
        self._takes_first = pooling.exists() and json.loads(pooling.read_text()).get("pooling_mode_cls_token", False)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()
        weights = read_safetensors(folder / "model.safetensors")
        self._word, self._position, kinds = (weights[f"embeddings.{name}_embeddings.weight"] for name in EMBEDDINGS)
        self._kind = kinds[0]
        self._session = _open_session(BertGraph(weights, config).serialize())

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [self._vector(text).astype(np.float16).tobytes() for text in texts]

    def familiarity(self, text: str) -> float:
        return familiarity(self._tokenizer, text)

    def _vector(self, text: str) -> Array:
        """One text at a time: a batch would compute the padding of its shorter texts, too."""
        ids = self._tokenizer.encode(text).ids
        embedded = self._word[ids] + self._position[: len(ids)] + self._kind
        (state,) = self._session.run(None, {"embedded": embedded})
        pooled = state[0] if self._takes_first else state.sum(axis=0)
        return np.asarray(pooled / np.linalg.norm(pooled), np.float32)


def _open_session(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone: a warning about the machine is of no use to a user
    # One thread leaves the other cores to the program, needs no pool that a forked child would lack, and takes the
    # least CPU time.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class BertGraph:
    """The layers of BERT as an ONNX graph, from the embedded tokens of one text to their states."""

    def __init__(self, weights: dict[str, Array], config: dict[str, Any]) -> None:
        self._weights = weights
        self._heads = int(config["num_attention_heads"])
        self._width = int(config["hidden_size"])
        self._epsilon = float(config["layer_norm_eps"])
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._split = self._constant("split", np.array([-1, self._heads, self._width // self._heads], np.int64))
        self._join = self._constant("join", np.array([-1, self._width], np.int64))
        state = self._normalize("embedded", "embeddings.LayerNorm")
        for layer in range(int(config["num_hidden_layers"])):
            state = self._layer(state, f"encoder.layer.{layer}")
        self._result = state

    def serialize(self) -> bytes:
        shape: list[str | int | None] = ["tokens", self._width]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("embedded", self._result)]
        graph = helper.make_graph(self._nodes, "bert", ends[:1], ends[1:], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        return bytes(model.SerializeToString())

    def _layer(self, state: str, at: str) -> str:
        attended = self._dense(self._attend(state, f"{at}.attention.self"), f"{at}.attention.output.dense")
        state = self._normalize(self._node("Add", state, attended), f"{at}.attention.output.LayerNorm")
        inner = self._node("Gelu", self._dense(state, f"{at}.intermediate.dense"))
        outer = self._dense(inner, f"{at}.output.dense")
        return self._normalize(self._node("Add", state, outer), f"{at}.output.LayerNorm")

    def _attend(self, state: str, at: str) -> str:
        scale = 1 / math.sqrt(self._width // self._heads)
        query = self._by_head(self._dense(state, f"{at}.query", scale), (1, 0, 2))
        key = self._by_head(self._dense(state, f"{at}.key"), (1, 2, 0))
        value = self._by_head(self._dense(state, f"{at}.value"), (1, 0, 2))
        fit = self._node("Softmax", self._node("MatMul", query, key), axis=-1)
        mixed = self._node("Transpose", self._node("MatMul", fit, value), perm=(1, 0, 2))
        return self._node("Reshape", mixed, self._join)

    def _by_head(self, state: str, order: tuple[int, ...]) -> str:
        return self._node("Transpose", self._node("Reshape", state, self._split), perm=order)

    def _dense(self, state: str, at: str, factor: float = 1.0) -> str:
        weight = self._constant(f"{at}.weight", factor * self._weights[f"{at}.weight"].T)
        bias = self._constant(f"{at}.bias", factor * self._weights[f"{at}.bias"])
        return self._node("Add", self._node("MatMul", state, weight), bias)

    def _normalize(self, state: str, at: str) -> str:
        names = [self._constant(f"{at}.{part}", self._weights[f"{at}.{part}"]) for part in ("weight", "bias")]
        return self._node("LayerNormalization", state, *names, epsilon=self._epsilon)

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its output."""
        output = f"{operator}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name


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
