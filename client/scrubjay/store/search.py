"""Search in values and in the items of lists, by reading them: they have no index, so that it costs a write nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from scrubjay.errors import InvalidInput
from scrubjay.exact_json import decode, encode
from scrubjay.models import Match
from scrubjay.recall.documents import count_needles, excerpt, needles_of, score, strings_in, terms_of
from scrubjay.recall.query import analyze, split_passages
from scrubjay.store.encryption import item_associated_data
from scrubjay.store.items import key_range
from scrubjay.store.operation import SNAPSHOT, Context, SlowQuery, Statements, operation

MAX_SEARCH_BYTES = 16 * 2**20
"""Bytes of keys and values that one search may read: about 100,000 messages, which take 0.4 s of CPU time, and 2 s if
they are not in English. Clients wait 5 s for a response. A longer prefix searches less."""
MAX_RANKED = 300
"""Texts whose words are counted for a score, up to 1 ms each: those with the most words of the query."""
_END = 2**62
"""A position after every item of a list."""


_Stored = tuple[str, str | list[str]]


class _Document(NamedTuple):
    """A value, or an item of a list."""

    found: int
    """How many words of the query it contains; the first field, because they are ordered by it."""
    number: int
    key: str
    position: int | None
    text: str


@operation("search", SNAPSHOT)
def search(context: Context, namespace: str, query: str, prefix: str, limit: int) -> Statements[list[Match]]:
    """The values and items of lists that fit a query best, under keys that start with `prefix`."""
    at = (namespace, context.now, *key_range(prefix))
    ((size,),) = yield SlowQuery("sum_range", at)
    if size > MAX_SEARCH_BYTES:
        raise InvalidInput(
            f"a search reads at most {MAX_SEARCH_BYTES:,} bytes, and {size:,} are stored under the prefix {prefix!r};"
            " search with a longer prefix"
        )
    passages = [analyze(text) for text in split_passages(query)]
    needles = needles_of(passages)
    total, found = 0, []
    for key, text in (yield from _read_all(context, namespace, at)):
        for position, part in _split(text):
            total += 1
            contained = count_needles(part if position is not None else f"{key} {part}", needles)
            if contained:
                found.append(_Document(contained, total, key, position, part))
    best = heapq.nlargest(MAX_RANKED, found)
    scores = score(passages, [terms_of(excerpt(_text_of(document), needles)) for document in best], total)
    ranked = sorted(zip(scores, best, strict=True), key=lambda pair: (-pair[0], -pair[1].number))
    return [
        Match(document.key, document.position, decode(document.text), round(fit, 6))
        for fit, document in ranked[:limit]
        if fit > 0
    ]


def _read_all(context: Context, namespace: str, at: tuple[object, ...]) -> Statements[list[_Stored]]:
    """Each key with the JSON text of its value, or with the texts of the items of its list."""
    found: list[_Stored] = []
    decrypt = context.cipher.decrypt_all
    for key, text in (yield SlowQuery("read_range", at)):
        associated = item_associated_data(namespace, key)
        if text is not None:
            found.append((key, decrypt([text], associated)[0]))
        else:
            rows = yield SlowQuery("read_rows_between", (namespace, key, 0, _END))
            found.append((key, decrypt([value for (value,) in rows], associated)))
    return found


def _split(text: str | list[str]) -> Iterable[tuple[int | None, str]]:
    """A value as one text, a list as the texts of its items with their positions."""
    if isinstance(text, list):
        return enumerate(text)
    return enumerate(map(encode, decode(text))) if text.startswith("[") else [(None, text)]


def _text_of(document: _Document) -> str:
    """What a document says; a value is also found by the words of its key."""
    key = [] if document.position is not None else [document.key.replace("_", " ")]
    return "\n".join([*key, *strings_in(decode(document.text))])
