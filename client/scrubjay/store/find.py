"""Finding items by the fields of their values, the latest first: they are read and compared, and have no index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scrubjay.exact_json import decode
from scrubjay.filters import matches, needles_of
from scrubjay.store.encryption import NO_ENCRYPTION, item_associated_data
from scrubjay.store.items import KEYS_PER_QUERY, PAGE_BYTES, StoredItem, key_range, read_item, read_many
from scrubjay.store.operation import SNAPSHOT, Context, Rows, SlowQuery, Statements, operation


@operation("find", SNAPSHOT)
def find_items(
    context: Context, namespace: str, prefix: str, where: str, limit: int, offset: int
) -> Statements[list[StoredItem]]:
    """Items under keys that start with `prefix` whose values meet a filter, the latest first."""
    conditions = decode(where)
    at = (namespace, context.now, *key_range(prefix))
    if conditions:
        keys = (yield from _matching(context, at, conditions, limit + offset))[offset:]
    else:
        keys = [key for (key,) in (yield SlowQuery("latest_keys", (*at, limit, offset)))]
    found: list[StoredItem] = []
    for key in keys:
        stored = yield from read_item(namespace, key).start(context)
        if stored is not None:
            found.append(stored)
    return found


def _matching(
    context: Context, at: tuple[Any, ...], conditions: Mapping[str, Any], count: int
) -> Statements[list[str]]:
    """The first `count` keys whose values meet the conditions."""
    ((size,),) = yield SlowQuery("sum_values", at)
    needles = needles_of(conditions)
    batches: Iterable[Rows]
    if size <= PAGE_BYTES:
        needle = max(needles, key=len, default="") if context.cipher is NO_ENCRYPTION else ""
        rows = yield SlowQuery("latest_values", (*at, needle))
        batches = (rows[start : start + KEYS_PER_QUERY] for start in range(0, len(rows), KEYS_PER_QUERY))
    else:
        batches = _batches((yield SlowQuery("latest_sizes", at)))
    found: list[str] = []
    for batch in batches:
        texts = yield from _texts(context, at[0], batch, needles)
        # Decoded together, which takes half the time of one by one.
        values = decode(f"[{','.join(texts.values())}]")
        found += [key for key, value in zip(texts, values, strict=True) if matches(value, conditions)]
        if len(found) >= count:
            break
    return found[:count]


def _texts(context: Context, namespace: str, batch: Rows, needles: list[str]) -> Statements[dict[str, str]]:
    """The JSON text of each key of a batch that contains all needles, in order; a row may have the text or not."""
    unread = [key for key, text in batch if type(text) is not str and type(text) is not bytes]
    read = (yield from read_many(namespace, unread).start(context)) if unread else {}
    texts: dict[str, Any] = {key: read.get(key, text) for key, text in batch}
    if context.cipher is not NO_ENCRYPTION:
        decrypt = context.cipher.decrypt
        texts = {
            key: text if key in read else decrypt(text, item_associated_data(namespace, key))
            for key, text in texts.items()
        }
    return {key: text for key, text in texts.items() if all(needle in text for needle in needles)}


def _batches(rows: Rows) -> Iterator[Rows]:
    """Keys without values, in order: as many at a time as one query takes, and as have a page of bytes."""
    batch: Rows = []
    total = 0
    for key, size in rows:
        if batch and (len(batch) == KEYS_PER_QUERY or total + size > PAGE_BYTES):
            yield batch
            batch, total = [], 0
        batch.append((key, None))
        total += size
    if batch:
        yield batch
