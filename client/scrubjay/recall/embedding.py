"""The seam to a model that knows what texts mean. Only what is chosen is imported."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from scrubjay.errors import MissingExtra, ScrubjayError, Unavailable
from scrubjay.forks import Forkable

MIN_SIMILARITY = 0.25
"""Below this cosine, texts have nothing to do with each other."""
HTTP_SECONDS = 30.0
ASK_SECONDS = 4.0
"""How long a service may take for one text: whoever recalls waits for it, a client of a server 5 s in all."""
HUB_SECONDS = 3.0
"""How long the hub may take to say whether it has a model."""


class Embedder(Protocol):
    name: str
    """Vectors are only compared with those of the same name."""

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """For each text a vector of length one, as float16."""


def open_embedder(choice: str, seconds: float | None = None) -> Embedder:
    """A directory with a model, the URL of an OpenAI-compatible service (URL#model), or fastembed's name for one.

    A model that takes longer than so many seconds goes on loading in the background.
    """
    return _models.open(choice, seconds)


class StillLoading(Unavailable):
    """A model that will be there in a while."""


class _Models(Forkable):
    """Each model is loaded once, however many ask for it, by a thread that nobody has to wait for."""

    def __init__(self) -> None:
        self._ready: dict[str, Embedder] = {}
        self.start_anew()
        self.watch_forks()

    def start_anew(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[str, Future[Embedder]] = {}

    def open(self, choice: str, seconds: float | None) -> Embedder:
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
            raise StillLoading(f"the model {choice!r} is still being loaded or downloaded; wait for it") from None

    def _load(self, choice: str, opening: Future[Embedder]) -> None:
        try:
            self._ready[choice] = _loaded(choice)
            opening.set_result(self._ready[choice])
        except BaseException as error:  # noqa: BLE001 - tokenizers panic with one; nobody may be left waiting
            known = error if isinstance(error, ScrubjayError) else Unavailable(f"the model cannot be loaded: {error!r}")
            with self._lock:
                self._opening.pop(choice, None)  # the next to ask tries again
            opening.set_exception(known)


def _loaded(choice: str) -> Embedder:
    try:
        if choice.startswith(("http://", "https://")):
            return HttpEmbedder(choice)
        folder = Path(choice).expanduser()
        if folder.is_dir() or folder.is_absolute():
            from .minilm import MiniLM  # noqa: PLC0415 - needs the extra

            return MiniLM(folder)
        return FastEmbedder(choice)
    except ImportError as error:
        raise MissingExtra(
            f'SCRUBJAY_EMBEDDER needs what is not installed ({error}); run: pip install "scrubjay[semantic]"'
        ) from error
    except Exception as error:  # tokenizers and onnxruntime have errors of any kind
        raise Unavailable(
            f"the model {choice!r} cannot be loaded: {error}; SCRUBJAY_EMBEDDER names a directory with config.json,"
            " tokenizer.json and model.safetensors, a URL, or a model that fastembed can download"
        ) from error


class FastEmbedder:
    """Any model that fastembed knows. It is downloaded once."""

    def __init__(self, name: str) -> None:
        models, hub = import_module("fastembed").TextEmbedding, import_module("huggingface_hub")
        about = _described(name, models.list_supported_models())
        # fastembed's own place is the one for temporary files, which the next start of the machine may empty.
        cache = os.environ.get("FASTEMBED_CACHE_PATH") or hub.constants.HF_HUB_CACHE
        source = about["sources"]["hf"]
        files = (about["model_file"], *about.get("additional_files", ()), "tokenizer.json", "config.json")
        is_here = all(isinstance(hub.try_to_load_from_cache(source, file, cache_dir=cache), str) for file in files)
        if not is_here:
            _ask_for(source, hub, cache)
        self.name: str = about["model"]
        # One thread leaves the other cores to the program, and several spin while they wait for each other: two of them
        # take six tenths of the time on two idle cores, and twice the time on busy ones.
        self._model = models(self.name, cache_dir=cache, local_files_only=is_here, threads=1)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [_packed(vector) for vector in self._model.embed(list(texts))]


def _described(name: str, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What fastembed says of a model, whose name may lack the part before the slash."""
    by_end = {each["model"].rpartition("/")[2].lower(): each for each in models}
    end = name.rpartition("/")[2].lower()
    if end in by_end and name.lower() in {end, by_end[end]["model"].lower()}:
        return by_end[end]
    near = [by_end[each]["model"] for each in get_close_matches(end, by_end)]
    hint = f"; near it are {', '.join(near)}" if near else ""
    raise ValueError(f"there is no such directory, and fastembed knows no model of that name{hint}")


def _ask_for(source: str, hub: Any, cache: str) -> None:
    """Whether a model can be had is asked once: fastembed alone tries for 40 s and more."""
    try:
        hub.model_info(source, timeout=HUB_SECONDS)
    except Exception as error:  # which library raises it depends on the hub's version
        cause = str(error).partition("\n")[0]
        raise OSError(f"it is not in {cache}, and {hub.constants.ENDPOINT} does not give it ({cause})") from error


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
                timeout=ASK_SECONDS if len(texts) == 1 else HTTP_SECONDS,
            )
            answer.raise_for_status()
            found = sorted(answer.json()["data"], key=lambda each: each["index"])
            vectors = [_packed(each["embedding"]) for each in found]
        except (requests.RequestException, KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"cannot get embeddings from {self._url}: {error}; check SCRUBJAY_EMBEDDER") from error
        if len(vectors) != len(texts) or not all(vectors):
            raise Unavailable(f"{self._url} made {len(vectors)} vectors of {len(texts)} texts; check SCRUBJAY_EMBEDDER")
        return vectors


class Known:
    """Vectors side by side: one product compares them all with a question."""

    def __init__(self, marks: Any = (), notes: Any = (), matrix: Any = None) -> None:
        self.marks = marks
        """What tells each vector from all that ever were."""
        self._notes = notes
        self._matrix = matrix

    def __len__(self) -> int:
        return len(self.marks)

    @property
    def size(self) -> int:
        """In bytes."""
        return 0 if self._matrix is None else int(self._matrix.nbytes + self.marks.nbytes + self._notes.nbytes)

    def changed(self, there: Sequence[int], new: Sequence[tuple[int, int, bytes]]) -> Known:
        """Those of them whose marks are still there, and new ones: mark, note and vector."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        size = len(new[-1][2]) if new else 0
        new = [each for each in new if len(each[2]) == size]  # those of before a model changed its size are of no use
        stays = np.isin(np.asarray(self.marks, np.int64), np.asarray(there, np.int64))
        if new and len(self) and self._matrix.shape[1] * 2 != size:
            stays[:] = False
        parts = [(self.marks[stays], self._notes[stays], self._matrix[stays])] if stays.any() else []
        if new:
            marks, notes = (np.array([each[column] for each in new], np.int64) for column in (0, 1))
            vectors = np.frombuffer(b"".join(each[2] for each in new), np.float16).reshape(len(new), -1)
            parts.append((marks, notes, vectors.astype(np.float32)))
        return Known(*map(np.concatenate, zip(*parts, strict=True))) if parts else Known()

    def nearest(self, vector: bytes, most: int) -> dict[int, float]:
        """The cosine of those notes that mean most nearly the same; none where the model has another size by now."""
        import numpy as np  # noqa: PLC0415 - needs the extra

        asked = np.frombuffer(vector, np.float16).astype(np.float32)
        if self._matrix.shape[1] != len(asked):
            return {}
        cosines = self._matrix @ asked
        best = np.argsort(-cosines)[:most]
        return {int(self._notes[i]): min(float(cosines[i]), 1.0) for i in best if cosines[i] >= MIN_SIMILARITY}


def _packed(vector: Any) -> bytes:
    import numpy as np  # noqa: PLC0415 - needs the extra

    full = np.asarray(vector, np.float32)
    return (full / (np.linalg.norm(full) or 1)).astype(np.float16).tobytes()


_models = _Models()
