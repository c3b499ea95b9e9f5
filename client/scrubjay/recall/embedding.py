"""The seam to a model that knows what texts mean. Only what is chosen is imported."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from scrubjay.errors import MissingExtra, Unavailable

NEAREST = 50
"""Notes that meaning alone may put forward."""
MIN_SIMILARITY = 0.25
"""Below this cosine, texts have nothing to do with each other."""
HTTP_SECONDS = 30.0


class Embedder(Protocol):
    name: str
    """Vectors are only compared with those of the same name."""

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """For each text a vector of length one, as float16."""


@lru_cache(4)
def open_embedder(choice: str) -> Embedder:
    """A directory with a model, the URL of an OpenAI-compatible service (URL#model), or fastembed's name for one."""
    try:
        if choice.startswith(("http://", "https://")):
            return HttpEmbedder(choice)
        if Path(choice).is_dir():
            from .minilm import MiniLM  # noqa: PLC0415 - needs the extra

            return MiniLM(choice)
        return FastEmbedder(choice)
    except ImportError as error:
        raise MissingExtra(
            f'SCRUBJAY_EMBEDDER needs what is not installed ({error}); run: pip install "scrubjay[semantic]"'
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(
            f"the model {choice!r} cannot be loaded: {error}; SCRUBJAY_EMBEDDER names a directory with config.json,"
            " tokenizer.json and model.safetensors, a URL, or a model that fastembed can download"
        ) from error


class FastEmbedder:
    """Any model that fastembed knows; it downloads it once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._model = import_module("fastembed").TextEmbedding(name)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [_packed(vector) for vector in self._model.embed(list(texts))]


class HttpEmbedder:
    """An OpenAI-compatible service: Ollama, vLLM, OpenAI. The key comes from OPENAI_API_KEY."""

    def __init__(self, choice: str) -> None:
        import numpy as np  # noqa: F401, PLC0415 - missing extras are told at once

        self._url, _, model = choice.partition("#")
        self.name = model or "all-minilm"

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        import requests  # noqa: PLC0415 - `import scrubjay` stays light

        key = os.environ.get("OPENAI_API_KEY")
        try:
            answer = requests.post(
                f"{self._url.rstrip('/')}/embeddings",
                data=json.dumps({"model": self.name, "input": list(texts)}),
                headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
                timeout=HTTP_SECONDS,
            )
            answer.raise_for_status()
            found = sorted(answer.json()["data"], key=lambda each: each["index"])
            return [_packed(each["embedding"]) for each in found]
        except (requests.RequestException, KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"cannot get embeddings from {self._url}: {error}; check SCRUBJAY_EMBEDDER") from error


class Known:
    """Vectors side by side: one product compares them all with a question."""

    def __init__(self, ids: Sequence[int] = (), matrix: Any = None) -> None:
        self.ids = ids
        self._matrix = matrix

    @property
    def size(self) -> int:
        """In bytes."""
        return 0 if self._matrix is None else int(self._matrix.nbytes)

    def changed(self, there: Collection[int], new: Sequence[tuple[int, bytes]]) -> Known:
        """Those of them that are still there, and new ones."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        parts = []
        stays = np.isin(self.ids, np.fromiter(there, np.int64))
        if stays.any():
            parts.append(self._matrix if stays.all() else self._matrix[stays])
        if new:
            joined = np.frombuffer(b"".join(vector for _, vector in new), np.float16)
            parts.append(joined.reshape(len(new), -1).astype(np.float32))
        ids = [id_ for id_, stay in zip(self.ids, stays, strict=True) if stay] + [id_ for id_, _ in new]
        return Known(ids, np.concatenate(parts) if parts else None)

    def nearest(self, vector: bytes) -> dict[int, float]:
        """The cosine of those notes that mean most nearly the same."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        cosines = self._matrix @ np.frombuffer(vector, np.float16).astype(np.float32)
        best = np.argsort(-cosines)[:NEAREST]
        return {self.ids[i]: float(cosines[i]) for i in best if cosines[i] >= MIN_SIMILARITY}


def _packed(vector: Any) -> bytes:
    import numpy as np  # noqa: PLC0415 - needs the extra

    full = np.asarray(vector, np.float32)
    return (full / (np.linalg.norm(full) or 1)).astype(np.float16).tobytes()
