"""Checkpoints and a store for LangGraph, sync and async on one class.

    agent = create_agent(model, tools, checkpointer=ScrubjaySaver(), store=ScrubjayStore())
    agent.invoke({"messages": [("user", "Hi")]}, {"configurable": {"thread_id": "sarah"}})

Tested with langgraph 1.2 and langgraph-checkpoint 4.3.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._plain import join_key, plain, quote_part, unquote_part
from scrubjay.async_memory import AsyncMemory
from scrubjay.errors import Conflict
from scrubjay.memory import Memory
from scrubjay.models import Item as StoredItem

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_checkpoint_metadata,
        writes_sort_key,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        validate_op_namespace,
    )
except ImportError as error:
    raise missing("langgraph", "LangGraph", error) from error

Writes = list[tuple[str, str, Any]]
"""The pending writes of a checkpoint: task, channel and value of each."""
PART_CHARS = 4 * 2**20
"""Characters of a blob under one key; a longer one is split, because one call writes at most 16 MiB."""
SMALL_BYTES = 512
"""Bytes up to which the value of a channel is stored in the row of every checkpoint that has it: a row of its own would
be about as large, and another read."""
FEW_ITEMS = 20
"""Items that are faster read one by one, with their times, than with all others of their namespace."""
BATCH_CHARS = 12 * 2**20
"""Characters of blobs that one call writes."""


class ScrubjaySaver(BaseCheckpointSaver[str]):
    """A checkpointer: the state of each thread after each step, in a Memory.

    A checkpoint and the channels that changed in its step are written together, as one write. A channel that did not
    change is not written again, unless it is small.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a queued checkpoint
        would be missing when the next step asks for it.
    :param serde: LangGraph's serializer.
    """

    def __init__(
        self, memory: Memory | AsyncMemory | str = "langgraph", *, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self._memory = Memory(memory, strict=True) if isinstance(memory, str) else open_memory(memory)

    # ------------------------------------------------------------ reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, namespace = _place(config)
        if checkpoint_id := get_checkpoint_id(config):
            row = self._memory.get(join_key("c", thread, namespace, checkpoint_id))
        else:
            row = next(self._memory.values(_prefix("c", thread, namespace), reverse=True, limit=1), None)
        return self._to_tuple(row) if row else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        rows = self._rows(config, before)
        fitting = (row for row in rows if _fits(self._load(row["metadata"]), filter))
        return (self._to_tuple(row) for row in islice(fitting, limit))

    def _rows(self, config: RunnableConfig | None, before: RunnableConfig | None) -> Iterator[dict[str, Any]]:
        """The rows of checkpoints, the latest first."""
        prefix, wanted = "c/", None
        if config is not None:
            thread, wanted = str(config["configurable"]["thread_id"]), get_checkpoint_id(config)
            namespace = config["configurable"].get("checkpoint_ns")
            prefix = _prefix("c", thread) if namespace is None else _prefix("c", thread, namespace)
        earlier = get_checkpoint_id(before) if before else None
        for row in self._memory.values(prefix, reverse=True):
            if (wanted is None or row["id"] == wanted) and (earlier is None or row["id"] < earlier):
                yield row

    def _to_tuple(self, row: Mapping[str, Any]) -> CheckpointTuple:
        thread, namespace, checkpoint_id, parent = row["thread"], row["ns"], row["id"], row["parent"]
        checkpoint = self._load(row["checkpoint"])
        small = {channel: self._load(value) for channel, value in row["small"].items()}
        large = {channel: checkpoint["channel_versions"][channel] for channel in row["large"]}
        checkpoint["channel_values"] = small | (self._read_channels(thread, namespace, large) if large else {})
        return CheckpointTuple(
            config=_config(thread, namespace, checkpoint_id),
            checkpoint=checkpoint,
            metadata=self._load(row["metadata"]),
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=self._read_writes(thread, namespace, checkpoint_id),
        )

    def _read_channels(self, thread: str, namespace: str, versions: ChannelVersions) -> dict[str, Any]:
        keys = {channel: join_key("b", thread, namespace, channel, str(at)) for channel, at in versions.items()}
        found = self._memory.get_many(keys.values())
        return {channel: self._load(found[key], key) for channel, key in keys.items() if key in found}

    def _read_writes(self, thread: str, namespace: str, checkpoint_id: str) -> Writes:
        rows = self._memory.items(_prefix("w", thread, namespace, checkpoint_id))
        found = [(key, row) for key, row in rows if "channel" in row]  # the others are parts of long ones
        found.sort(key=lambda pair: writes_sort_key(pair[1]["path"], pair[1]["task"], pair[1]["index"]))
        return [(row["task"], row["channel"], self._load(row, key)) for key, row in found]

    # ------------------------------------------------------------ writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread, namespace = _place(config)
        rows: dict[str, Any] = {}
        small: dict[str, Any] = {}
        large: list[str] = []
        for channel, value in checkpoint["channel_values"].items():
            if channel not in checkpoint["channel_versions"]:
                continue
            blob = self.serde.dumps_typed(value)
            if len(blob[1]) <= SMALL_BYTES:
                small[channel] = _encoded(blob)
                continue
            large.append(channel)
            if channel in new_versions:
                rows |= _rows_of(join_key("b", thread, namespace, channel, str(new_versions[channel])), blob)
        rows[join_key("c", thread, namespace, checkpoint["id"])] = {
            "thread": thread,
            "ns": namespace,
            "id": checkpoint["id"],
            "parent": get_checkpoint_id(config),
            "checkpoint": self._dump({name: part for name, part in checkpoint.items() if name != "channel_values"}),
            "metadata": self._dump(get_checkpoint_metadata(config, metadata)),
            "small": small,
            "large": large,
        }
        self._store(rows)
        return _config(thread, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        thread, namespace = _place(config)
        checkpoint_id = config["configurable"]["checkpoint_id"]
        rows: dict[str, Any] = {}
        replaced: dict[str, Any] = {}
        for number, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, number)
            key = join_key("w", thread, namespace, checkpoint_id, task_id, str(index))
            beside = {"task": task_id, "path": task_path, "channel": channel, "index": index}
            target = replaced if index < 0 else rows
            target |= _rows_of(key, self.serde.dumps_typed(value), beside)
        try:
            self._store({**replaced, **rows}, dict.fromkeys(rows, 0))
        except Conflict:  # some of them are stored already, and stay
            known = self._memory.get_many(rows)
            self._store({**replaced, **{key: row for key, row in rows.items() if key not in known}})

    def delete_thread(self, thread_id: str) -> None:
        for kind in "cwb":  # checkpoints first: without them nothing else is read
            self._memory.clear(_prefix(kind, str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = set(run_ids)
        self._delete([row for row in self._memory.values("c/") if self._load(row["metadata"]).get("run_id") in wanted])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        target = str(target_thread_id)
        for kind in "bwc":  # checkpoints last: they refer to the others
            start = _prefix(kind, str(source_thread_id))
            for key, row in self._memory.items(start):
                moved = {**row, "thread": target} if kind == "c" else row
                self._memory.set(_prefix(kind, target) + key.removeprefix(start), moved)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the latest of each namespace, or with "delete" all of them.

        Not for graphs with delta channels: their values are spread over the checkpoints before the latest.
        """
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            rows = list(self._memory.values(_prefix("c", thread)))
            latest = {row["ns"]: row["id"] for row in rows}  # in order, so that the last one stays
            self._delete([row for row in rows if latest[row["ns"]] != row["id"]])

    def _delete(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Delete checkpoints with their writes, and the values of channels that no other checkpoint has."""
        for row in rows:
            self._memory.delete(join_key("c", row["thread"], row["ns"], row["id"]))
            self._memory.clear(_prefix("w", row["thread"], row["ns"], row["id"]))
        for thread, namespace in {(row["thread"], row["ns"]) for row in rows}:
            used: set[str] = set()
            for row in self._memory.values(_prefix("c", thread, namespace)):
                versions = self._load(row["checkpoint"])["channel_versions"]
                used |= {join_key("b", thread, namespace, channel, str(at)) for channel, at in versions.items()}
            stored = self._memory.keys(_prefix("b", thread, namespace))
            self._memory.update(dict.fromkeys(key for key in stored if key.partition("#")[0] not in used))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """A text that sorts after the current version; the random part keeps two branches apart."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - not a secret

    def _store(self, rows: Mapping[str, Any], if_versions: Mapping[str, int] | None = None) -> None:
        """Write rows in as few calls as their size allows; the last row, the checkpoint, is in the last call."""
        batch: dict[str, Any] = {}
        size = 0
        for key, row in rows.items():
            length = len(row.get("data", "")) if isinstance(row, dict) else len(row)
            if batch and size + length > BATCH_CHARS:
                self._memory.update(batch)
                batch, size = {}, 0
            batch[key] = row
            size += length
        expected = {key: version for key, version in (if_versions or {}).items() if key in batch}
        self._memory.update(batch, if_versions=expected or None)

    def _dump(self, value: Any) -> dict[str, str]:
        return _encoded(self.serde.dumps_typed(value))

    def _load(self, row: Mapping[str, Any], key: str = "") -> Any:
        data = row.get("data")
        if data is None:
            names = [f"{key}#{number:04}" for number in range(row["parts"])]
            parts = self._memory.get_many(names)
            data = "".join(parts[name] for name in names)
        return self.serde.loads_typed((row["type"], base64.b64decode(data)))

    # ------------------------------------------------------------ the same for asyncio

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found: CheckpointTuple | None = await read(self.get_tuple, config)
        return found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await read(next, found, None)) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await write(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await write(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await write(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await write(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await write(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await write(self.prune, thread_ids, strategy=strategy)


def _place(config: RunnableConfig) -> tuple[str, str]:
    """The thread and the namespace of a checkpoint."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _prefix(*parts: str) -> str:
    return f"{join_key(*parts)}/"


def _fits(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


def _encoded(blob: tuple[str, bytes]) -> dict[str, str]:
    kind, data = blob
    return {"type": kind, "data": base64.b64encode(data).decode()}


def _rows_of(key: str, blob: tuple[str, bytes], beside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A blob as one row, or as a row and its parts."""
    kind, data = blob
    text = base64.b64encode(data).decode()
    if len(text) <= PART_CHARS:
        return {key: {**(beside or {}), "type": kind, "data": text}}
    parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]
    rows: dict[str, Any] = {f"{key}#{number:04}": part for number, part in enumerate(parts)}
    return {**rows, key: {**(beside or {}), "type": kind, "parts": len(parts)}}


# ------------------------------------------------------------ the store

_COMPARISONS = {
    "$eq": lambda value, other: value == other,
    "$ne": lambda value, other: value != other,
    "$gt": lambda value, other: value > other,
    "$gte": lambda value, other: value >= other,
    "$lt": lambda value, other: value < other,
    "$lte": lambda value, other: value <= other,
}


class ScrubjayStore(BaseStore):
    """A store: values of long-term memory under namespaces, found by key, by filter and by their words.

    `search(…, query=…)` finds words in whatever form; it needs no model and no `index`.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param ttl: LangGraph's TTLConfig, in minutes: default_ttl, refresh_on_read.
    """

    supports_ttl = True

    def __init__(self, memory: Memory | AsyncMemory | str = "langgraph-store", *, ttl: TTLConfig | None = None) -> None:
        self._memory = Memory(memory, strict=True) if isinstance(memory, str) else open_memory(memory)
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: reads see the state before the puts, and of several puts to one key the last counts."""
        wanted = list(ops)
        for op in wanted:
            validate_op_namespace(op)
        results: list[Result] = [None if isinstance(op, PutOp) else self._read(op) for op in wanted]
        puts = {_key(op): op for op in wanted if isinstance(op, PutOp)}
        by_ttl: dict[float | None, dict[str, Any]] = {}
        for key, op in puts.items():
            row = None if op.value is None else {"value": plain(op.value), "ttl": op.ttl}
            by_ttl.setdefault(op.ttl, {})[key] = row
        for minutes, values in by_ttl.items():
            self._memory.update(values, ttl=None if minutes is None else minutes * 60)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        wanted = list(ops)
        return await write(self.batch, wanted)

    def _read(self, op: GetOp | SearchOp | ListNamespacesOp) -> Result:
        if isinstance(op, GetOp):
            return self._get(op)
        return self._search(op) if isinstance(op, SearchOp) else self._list_namespaces(op)

    def _get(self, op: GetOp) -> Item | None:
        found = self._memory.item(_key(op))
        if found is None:
            return None
        self._refresh([found], op.refresh_ttl)
        return Item(**_fields(found))

    def _search(self, op: SearchOp) -> list[SearchItem]:
        _check_filter(op.filter)
        found = self._ranked(op) if op.query else ((item, None) for item in self._scan(op))
        fitting = [(item, score) for item, score in found if _matches(item.value["value"], op.filter)]
        if not op.query:  # the latest first; the sort is stable, so that equal times keep the order of their keys
            fitting.sort(key=lambda pair: pair[0].updated_at, reverse=True)
        page = fitting[op.offset : op.offset + op.limit]
        self._refresh([item for item, _ in page], op.refresh_ttl)
        return [SearchItem(**_fields(item), score=score) for item, score in page]

    def _scan(self, op: SearchOp) -> Iterator[StoredItem]:
        """The items below a namespace; with a filter, those that may fit it."""
        if not op.filter:
            return self._memory.scan(_below(op))
        keys = [key for key, row in self._memory.items(_below(op)) if _matches(row["value"], op.filter)]
        if len(keys) > FEW_ITEMS:
            return self._memory.scan(_below(op))
        return (item for item in map(self._memory.item, keys) if item is not None)

    def _ranked(self, op: SearchOp) -> Iterator[tuple[StoredItem, float]]:
        for match in self._memory.search(str(op.query), _below(op), limit=1000):
            item = self._memory.item(match.key)
            if item is not None:
                yield item, match.score

    def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {_split(key)[0] for key in self._memory.keys("s/")}
        conditions = op.match_conditions or ()
        fitting = {path for path in found if all(_meets(path, condition) for condition in conditions)}
        cut = {path[: op.max_depth] if op.max_depth else path for path in fitting}
        return sorted(cut)[op.offset : op.offset + op.limit]

    def _refresh(self, items: Sequence[StoredItem], wanted: bool | None) -> None:
        """Start the time to live of items again."""
        if not wanted or not self.ttl_config or not self.ttl_config.get("refresh_on_read"):
            return
        for item in items:
            if item.value["ttl"] is not None:
                self._memory.touch(item.key, item.value["ttl"] * 60)


def _key(op: GetOp | PutOp) -> str:
    """The key of an item; two slashes stand between its namespace and its own key."""
    return f"{join_key('s', *op.namespace)}//{quote_part(op.key)}"


def _below(op: SearchOp) -> str:
    return f"{join_key('s', *op.namespace_prefix)}/"


def _split(key: str) -> tuple[tuple[str, ...], str]:
    """The namespace and the own key of an item."""
    path, _, name = key.removeprefix("s/").partition("//")
    return tuple(map(unquote_part, path.split("/"))), unquote_part(name)


def _fields(item: StoredItem) -> dict[str, Any]:
    namespace, key = _split(item.key)
    return {
        "namespace": namespace,
        "key": key,
        "value": item.value["value"],
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }


def _check_filter(wanted: Mapping[str, Any] | None) -> None:
    for name, expected in (wanted or {}).items():
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise ValueError(f"Invalid filter key {name!r}: use letters, digits, _ . and -")
        if isinstance(expected, Mapping) and not _has_operators(expected):
            _check_filter(expected)


def _matches(value: Any, wanted: Mapping[str, Any] | None) -> bool:
    return all(_compare(_follow(value, name), expected) for name, expected in wanted.items()) if wanted else True


def _follow(value: Any, path: str) -> Any:
    """The field of a name, or of a dotted path; what is stored is JSON, so that every object is a dict."""
    if type(value) is dict and path in value:
        return value[path]
    for name in path.split("."):
        value = value.get(name) if type(value) is dict else None
    return value


def _compare(value: Any, expected: Any) -> bool:
    if not isinstance(expected, dict):
        return bool(value == expected)
    if _has_operators(expected):
        return all(_apply(name, value, other) for name, other in expected.items())
    return type(value) is dict and _matches(value, expected)


def _has_operators(expected: Mapping[str, Any]) -> bool:
    return any(name.startswith("$") for name in expected)


def _apply(operator: str, value: Any, other: Any) -> bool:
    if operator not in _COMPARISONS:
        raise ValueError(f"{operator} is not an operator of a filter; use one of {', '.join(_COMPARISONS)}")
    try:
        return bool(_COMPARISONS[operator](value, other))
    except TypeError:  # values of different kinds have no order
        return False


def _meets(path: tuple[str, ...], condition: MatchCondition) -> bool:
    wanted = condition.path
    if len(path) < len(wanted):
        return False
    part = path[: len(wanted)] if condition.match_type == "prefix" else path[len(path) - len(wanted) :]
    return all(label in ("*", own) for label, own in zip(wanted, part, strict=True))
