"""Key-value stores and a cache of model answers for LangChain, sync and async.

    set_llm_cache(ScrubjayCache())
    CacheBackedEmbeddings.from_bytes_store(embeddings, ScrubjayByteStore("embeddings"))

Tested with langchain-core 1.7.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._large import delete_keys, read_keys
from scrubjay.adapters._plain import plain
from scrubjay.async_memory import AsyncMemory
from scrubjay.exact_json import MAX_WRITE_ROWS, byte_size, encode
from scrubjay.memory import Memory

try:
    from langchain_core.caches import BaseCache
    from langchain_core.messages import message_to_dict, messages_from_dict
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, Generation, GenerationChunk
    from langchain_core.stores import BaseStore
except ImportError as error:
    raise missing("langchain", "langchain-core", error) from error

V = TypeVar("V")

BATCH_BYTES = 12 * 2**20
"""Bytes of keys and values that one call writes: at most 16 MiB are allowed."""
_GENERATIONS: dict[str, Any] = {
    kind.__name__: kind for kind in (Generation, GenerationChunk, ChatGeneration, ChatGenerationChunk)
}


class _Store(BaseStore[str, V]):
    """A store whose keys are those of a namespace."""

    def __init__(self, memory: Memory | AsyncMemory | str) -> None:
        self._memory = open_memory(memory)

    @abstractmethod
    def _encode(self, value: V) -> Any: ...

    @abstractmethod
    def _decode(self, stored: Any) -> V: ...

    def mget(self, keys: Sequence[str]) -> list[V | None]:
        found = read_keys(self._memory, keys)
        return [self._decode(found[key]) if key in found else None for key in keys]

    def mset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Store values; all of them or none, unless they are more than 100,000 or have more than 12 MiB together."""
        batch: dict[str, Any] = {}
        size = 0
        for key, value in key_value_pairs:
            stored = self._encode(value)
            length = byte_size(key) + byte_size(encode(stored))
            if size + length > BATCH_BYTES or len(batch) == MAX_WRITE_ROWS:
                self._memory.update(batch)
                batch, size = {}, 0
            batch[key] = stored
            size += length
        self._memory.update(batch)

    def mdelete(self, keys: Sequence[str]) -> None:
        delete_keys(self._memory, keys)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        yield from self._memory.keys(prefix or "")

    async def amget(self, keys: Sequence[str]) -> list[V | None]:
        return await read(self.mget, keys)

    async def amset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        await write(self.mset, key_value_pairs)

    async def amdelete(self, keys: Sequence[str]) -> None:
        await write(self.mdelete, keys)

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        for key in await read(self._memory.keys, prefix or ""):
            yield key


class ScrubjayByteStore(_Store[bytes]):
    """A store of bytes, such as LangChain keeps embeddings and documents in; a value is stored as base64 text.

    :param memory: a Memory or AsyncMemory, or the name of a namespace, all of whose keys are the store's.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "langchain-bytes") -> None:
        super().__init__(memory)

    def _encode(self, value: bytes) -> str:
        return base64.b64encode(value).decode()

    def _decode(self, stored: Any) -> bytes:
        return base64.b64decode(stored)


class ScrubjayJsonStore(_Store[Any]):
    """A store of JSON values: models, enums, dates and ids are converted; bytes and others belong into a byte store.

    :param memory: a Memory or AsyncMemory, or the name of a namespace, all of whose keys are the store's.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "langchain") -> None:
        super().__init__(memory)

    def _encode(self, value: Any) -> Any:
        return plain(value)

    def _decode(self, stored: Any) -> Any:
        return stored


class ScrubjayCache(BaseCache):
    """A cache of the answers of models, which processes and machines share.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param ttl: seconds for which an answer is used; with None it never expires.
    """

    def __init__(self, memory: Memory | AsyncMemory | str = "langchain-cache", *, ttl: float | None = None) -> None:
        self._memory = open_memory(memory)
        self._ttl = ttl

    def lookup(self, prompt: str, llm_string: str) -> list[Any] | None:
        found = self._memory.get(_cache_key(prompt, llm_string))
        return None if found is None else [_load(each) for each in found]

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Any]) -> None:
        self._memory.set(_cache_key(prompt, llm_string), [_dump(each) for each in return_val], ttl=self._ttl)

    def clear(self, **_kwargs: Any) -> None:
        """Delete all answers."""
        self._memory.clear("llm/")

    async def alookup(self, prompt: str, llm_string: str) -> list[Any] | None:
        return await read(self.lookup, prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Any]) -> None:
        await write(self.update, prompt, llm_string, return_val)

    async def aclear(self, **_kwargs: Any) -> None:
        await write(self.clear)


def _cache_key(prompt: str, llm_string: str) -> str:
    """A hash: prompts are longer than keys may be."""
    digest = blake2b(digest_size=32)
    for text in (prompt, llm_string):
        data = text.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    return f"llm/{digest.hexdigest()}"


def _dump(generation: Any) -> dict[str, Any]:
    fields = {"type": type(generation).__name__, "info": plain(generation.generation_info)}
    if isinstance(generation, ChatGeneration):
        return {**fields, "message": plain(message_to_dict(generation.message))}
    return {**fields, "text": generation.text}


def _load(stored: dict[str, Any]) -> Any:
    kind = _GENERATIONS.get(stored["type"], ChatGeneration if "message" in stored else Generation)
    if "message" in stored:
        (message,) = messages_from_dict([stored["message"]])
        return kind(message=message, generation_info=stored["info"])
    return kind(text=stored["text"], generation_info=stored["info"])
