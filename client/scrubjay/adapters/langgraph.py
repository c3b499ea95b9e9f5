"""Checkpoints and a store for LangGraph, sync and async on one class.

    agent = create_agent(model, tools, checkpointer=ScrubjaySaver(), store=ScrubjayStore())
    agent.invoke({"messages": [("user", "Hi")]}, {"configurable": {"thread_id": "sarah"}})

Tested with langgraph 1.2 and langgraph-checkpoint 4.3.
"""

from __future__ import annotations

import base64
import math
import random
import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrubjay.adapters._framework import missing, open_memory, read, write
from scrubjay.adapters._large import delete_keys, load_text, parts_below, parts_prefix, read_keys, save_rows
from scrubjay.adapters._plain import join_key, plain, quote_part, session_name, unquote_part
from scrubjay.adapters._recall import first_bytes
from scrubjay.async_memory import AsyncMemory
from scrubjay.conversations import MARK, MESSAGES, STATE, entry, session_key
from scrubjay.errors import Conflict, InvalidInput
from scrubjay.exact_json import byte_size, encode
from scrubjay.filters import check_filter, has_operators, matches
from scrubjay.memory import Memory
from scrubjay.models import Item as StoredItem
from scrubjay.validation import MAX_RECALL

try:
    from langchain_core.messages import BaseMessage, RemoveMessage
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
    from langgraph.checkpoint.serde.types import _DeltaSnapshot
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
if TYPE_CHECKING:
    from langgraph.checkpoint.base import DeltaChannelHistory

Rows = dict[str, dict[str, Any]]
"""Keys and rows of pending writes; a key starts with that of the checkpoint, so that both are read at once."""
Writes = list[tuple[str, str, Any]]
"""The pending writes of a checkpoint: task, channel and value of each."""
Texts = list[str]
"""In the class that has a method `list`."""
Messages = list[dict[str, Any]]
"""Messages as items of a conversation."""
SMALL_BYTES = 512
"""Bytes up to which the value of a channel is stored in the row of every checkpoint that has it: a row of its own would
be about as large, and another read."""
LARGEST_PAGE = 1000
"""Rows that one call reads when checkpoints are listed; the calls before it read fewer."""
ROOT = f"{STATE}langgraph"
"""The start of a thread's keys, behind the prefix of the session of its name, with which they are erased. Below it are
"c" for checkpoints and their pending writes, and "b" for values of channels."""
RECENT = 20
"""Messages at the end of a list among which one is looked for that a delta channel is given, as when it was edited."""
MESSAGE_BYTES = 2**20
"""Bytes of a message, as JSON, up to which it is listed whole; of a longer one the start of its text is."""
APPEND_BYTES = 2 * 2**20
"""Bytes of messages that one call appends: a checkpoint of 12 MiB in the same call leaves 4."""
_LISTED = ("role", "name", "tool_calls", "tool_call_id")
"""Fields of a message that are listed beside its type and content."""
HUGE = 10**400
"""Greater than every float."""


class ScrubjaySaver(BaseCheckpointSaver[str]):
    """A checkpointer: the state of each thread after each step, in a Memory.

    A checkpoint and the channels that changed in its step are written together, as one write. A channel that did not
    change is not written again, unless it is small. The messages of the channel `messages` are also appended to a list,
    as `scrubjay chat` and the dashboard show it.

    :param memory: a Memory or AsyncMemory, or the name of a namespace. Open it with `strict=True`: a queued checkpoint
        would be missing when the next step asks for it.
    :param serde: LangGraph's serializer.
    """

    def __init__(
        self, memory: Memory | AsyncMemory | str = "langgraph", *, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self._memory = open_memory(memory, strict=True)

    # ------------------------------------------------------------ reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, namespace = _place(config)
        if checkpoint_id := get_checkpoint_id(config):
            found = self._read(_row_key(thread, "c", namespace, checkpoint_id))
        else:
            found = next(self._latest_first(_prefix(thread, "c", namespace)), None)
        return self._to_tuple(*found) if found else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        rows = self._rows(config, before, limit or 1)
        fitting = (found for found in rows if not filter or _fits(self._metadata(found[0]), filter))
        return (self._to_tuple(*found) for found in islice(fitting, limit))

    def _rows(
        self, config: RunnableConfig | None, before: RunnableConfig | None, size: int
    ) -> Iterator[tuple[dict[str, Any], Rows]]:
        """The rows of checkpoints with their pending writes, the latest first; `size` is that of the first page."""
        wanted = None
        if config is None:
            prefixes = self._threads()
        else:
            thread, wanted = str(config["configurable"]["thread_id"]), get_checkpoint_id(config)
            namespace = config["configurable"].get("checkpoint_ns")
            prefixes = [_prefix(thread, "c") if namespace is None else _prefix(thread, "c", namespace)]
        earlier = get_checkpoint_id(before) if before else None
        for prefix in prefixes:
            for row, writes in self._latest_first(prefix, size):
                if (wanted is None or row["id"] == wanted) and (earlier is None or row["id"] < earlier):
                    yield row, writes

    def _threads(self) -> Texts:
        """The prefixes of the checkpoints of all threads, the last first."""
        keys = [*self._memory.keys(MARK), *self._memory.keys(ROOT)]
        found = (key.partition(f"{ROOT}/c/") for key in keys)
        return sorted({start + mark for start, mark, _ in found if mark}, reverse=True)

    def _read(self, key: str) -> tuple[dict[str, Any], Rows] | None:
        """The row of a checkpoint, and those of its pending writes, in one call."""
        rows = dict(self._memory.items(key))
        row = rows.pop(key, None)
        return row and (row, {each: write for each, write in rows.items() if each.startswith(f"{key}/")})

    def _latest_first(
        self, prefix: str, size: int = 1, after: str | None = None
    ) -> Iterator[tuple[dict[str, Any], Rows]]:
        """The rows of checkpoints with their pending writes: from the last key to the first, writes come before them.

        The first call reads `size` rows: one is all that the latest checkpoint of most threads has.
        """
        size = min(size, LARGEST_PAGE)
        writes: Rows = {}
        while True:
            page = list(self._memory.items(prefix, after=after, limit=size, reverse=True))
            for key, row in page:
                if "id" in row:
                    yield row, {each: write for each, write in writes.items() if each.startswith(f"{key}/")}
                    writes = {}
                else:
                    writes[key] = row
            if len(page) < size:
                return
            after, size = page[-1][0], min(size * 10, LARGEST_PAGE)

    def _to_tuple(self, row: Mapping[str, Any], writes: Rows) -> CheckpointTuple:
        thread, namespace, checkpoint_id, parent = row["thread"], row["ns"], row["id"], row["parent"]
        state = self._load(row["state"])
        checkpoint = state["checkpoint"]
        if row["large"]:
            large = {channel: checkpoint["channel_versions"][channel] for channel in row["large"]}
            checkpoint["channel_values"] |= self._read_channels(thread, namespace, large)
        return CheckpointTuple(
            config=_config(thread, namespace, checkpoint_id),
            checkpoint=checkpoint,
            metadata=state["metadata"],
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=self._load_writes(writes) if writes else [],
        )

    def _read_channels(self, thread: str, namespace: str, versions: ChannelVersions) -> dict[str, Any]:
        keys = {channel: _row_key(thread, "b", namespace, channel, str(at)) for channel, at in versions.items()}
        found = self._memory.get_many(keys.values())
        return {channel: self._load(found[key], key) for channel, key in keys.items() if key in found}

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are made of: the last value that is stored, and what was written to it since.

        The checkpoints before this one are read page by page; LangGraph's own method makes a call for each.
        """
        found: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        branch = self._branch(config) if channels else iter(())
        next(branch, None)  # what is written to the checkpoint itself belongs to the next one
        for row, rows in branch:
            open_channels = {channel for channel, history in found.items() if "seed" not in history}
            own = {key: write for key, write in rows.items() if write["channel"] in open_channels}
            for pending in reversed(self._load_writes(own)):
                found[pending[1]]["writes"].append(pending)
            if open_channels & self._stored_channels(row):
                values = self._to_tuple(row, {}).checkpoint["channel_values"]
                for channel in open_channels & values.keys():
                    found[channel]["seed"] = values[channel]
            if all("seed" in history for history in found.values()):
                break
        for history in found.values():
            history["writes"].reverse()
        return found

    def _branch(self, config: RunnableConfig) -> Iterator[tuple[dict[str, Any], Rows]]:
        """A checkpoint, or the latest, and all before it in its branch, with their pending writes."""
        thread, namespace = _place(config)
        wanted = get_checkpoint_id(config)
        after = f"{_row_key(thread, 'c', namespace, wanted)}0" if wanted else None  # "0" comes after "/"
        rows = self._latest_first(_prefix(thread, "c", namespace), 100, after)
        known = {row["id"]: (row, writes) for row, writes in islice(rows, 1)}
        wanted = wanted or next(iter(known), None)
        walked: set[str] = set()
        while wanted and wanted not in walked:
            walked.add(wanted)
            while wanted not in known and (found := next(rows, None)):
                known[found[0]["id"]] = found
            # The id of a parent may be greater, if the clock of another process is ahead.
            at = known.pop(wanted, None) or self._read(_row_key(thread, "c", namespace, wanted))
            if at:
                yield at
            wanted = at and at[0]["parent"]

    def _load_writes(self, rows: Rows) -> Writes:
        found = sorted(
            rows.items(), key=lambda pair: writes_sort_key(pair[1]["path"], pair[1]["task"], pair[1]["index"])
        )
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
                small[channel] = value
                continue
            large.append(channel)
            if channel in new_versions:
                rows[_row_key(thread, "b", namespace, channel, str(new_versions[channel]))] = _encoded(blob)
        state = {
            "checkpoint": {**checkpoint, "channel_values": small},
            "metadata": get_checkpoint_metadata(config, metadata),
        }
        rows[_row_key(thread, "c", namespace, checkpoint["id"])] = {
            "thread": thread,
            "ns": namespace,
            "id": checkpoint["id"],
            "parent": get_checkpoint_id(config),
            "state": _encoded(self.serde.dumps_typed(state)),
            "large": large,
        }
        appended = {}
        if MESSAGES in new_versions and not namespace:
            appended = self._to_list(thread, checkpoint["channel_values"], get_checkpoint_id(config))
        save_rows(self._memory, rows, appended=appended)
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
            key = _row_key(thread, "c", namespace, checkpoint_id, task_id, str(index))
            beside = {"task": task_id, "path": task_path, "channel": channel, "index": index}
            target = replaced if index < 0 else rows
            target[key] = {**beside, **_encoded(self.serde.dumps_typed(value))}
        try:
            save_rows(self._memory, {**replaced, **rows}, new=rows)
        except Conflict:  # some of them are stored already, and stay
            known = read_keys(self._memory, list(rows))
            save_rows(self._memory, {**replaced, **{key: row for key, row in rows.items() if key not in known}})

    def delete_thread(self, thread_id: str) -> None:
        root = session_key(session_name(str(thread_id)), ROOT)
        with self._memory.transaction() as t:
            t.clear(f"{root}/")
            t.clear(parts_below(root))
            t.delete(_list_key(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = set(run_ids)
        for prefix in self._threads():
            rows = list(self._checkpoints(prefix))
            chosen = [row for row in rows if self._metadata(row).get("run_id") in wanted]
            if unneeded := self._without_needed(chosen, rows):
                # First: a call after a kill finds the checkpoints again.
                self._delete_from_list(unneeded[0]["thread"], {row["id"] for row in unneeded})
                self._delete(unneeded)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = str(source_thread_id), str(target_thread_id)
        for kind in "bc":  # checkpoints last: they refer to the others
            start = _prefix(source, kind)
            for key, row in self._memory.items(start):
                moved = {**row, "thread": target} if kind == "c" and "id" in row else row
                if row.get("parts"):
                    moved = {**row, "data": load_text(self._memory, key, row), "parts": 0}
                save_rows(self._memory, {_prefix(target, kind) + key.removeprefix(start): moved})
        self._replace_list(target, self._listed(source))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the latest of each namespace, or with "delete" all of them.

        What the delta channels of the latest are made of stays: the checkpoints back to one that has their values.
        """
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            rows = list(self._checkpoints(_prefix(thread, "c")))
            latest = {row["ns"]: row["id"] for row in rows}  # in order, so that the last one stays
            chosen = [row for row in rows if latest[row["ns"]] != row["id"]]
            self._delete(self._without_needed(chosen, rows))

    def _without_needed(
        self, chosen: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
    ) -> Sequence[dict[str, Any]]:
        """The chosen ones of a thread's checkpoints, without those that hold delta channels of the others."""
        by_id = {(row["ns"], row["id"]): row for row in rows}
        unneeded = {(row["ns"], row["id"]) for row in chosen}
        for place in by_id.keys() - unneeded:
            state = self._load(by_id[place]["state"])
            counters = state["metadata"].get("counters_since_delta_snapshot", ())
            missing = state["checkpoint"]["channel_versions"].keys() & counters
            at, walked = place, {place}
            while missing and (at := (at[0], by_id[at]["parent"])) in by_id.keys() - walked:
                walked.add(at)
                unneeded.discard(at)
                missing -= self._stored_channels(by_id[at])
        return [row for row in chosen if (row["ns"], row["id"]) in unneeded]

    def _stored_channels(self, row: Mapping[str, Any]) -> set[str]:
        """The channels that have a value in a checkpoint."""
        return {*row["large"], *self._load(row["state"])["checkpoint"]["channel_values"]}

    def _delete(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Delete checkpoints with their writes, and the values of channels that no other checkpoint has."""
        for row in rows:
            key = _row_key(row["thread"], "c", row["ns"], row["id"])
            self._memory.delete(key)
            self._memory.clear(f"{key}/")
            self._memory.clear(parts_below(key))
        for thread, namespace in {(row["thread"], row["ns"]) for row in rows}:
            used: set[str] = set()
            for row in self._checkpoints(_prefix(thread, "c", namespace)):
                versions = self._load(row["state"])["checkpoint"]["channel_versions"]
                used |= {_row_key(thread, "b", namespace, channel, str(at)) for channel, at in versions.items()}
            unused = [key for key in self._memory.keys(_prefix(thread, "b", namespace)) if key not in used]
            kept = set(map(parts_prefix, used))
            parts = self._memory.keys(parts_below(_row_key(thread, "b", namespace)))
            delete_keys(self._memory, unused + [key for key in parts if f"{key.rsplit('/', 2)[0]}/" not in kept])

    # ------------------------------------------------------------ the list of messages

    def _to_list(self, thread: str, values: Mapping[str, Any], parent: str | None) -> dict[str, Messages]:
        """The messages of a checkpoint that the list of its thread does not have yet, by the key of the list.

        They are those after the last one in the list. If the checkpoint does not have that one, as after a step back to
        an earlier checkpoint, the whole list is read. A delta channel only has those of the last step.
        """
        is_delta = MESSAGES not in values
        key, found = _list_key(thread), self._messages(values, self._writes_of(thread, parent) if is_delta else {})
        if not found:
            return {}
        new = list(found)
        recent = [_listed_id(item) for item in self._memory.tail(key, RECENT if is_delta else 1)]
        if not is_delta and recent and recent[0] in found:
            new = new[new.index(recent[0]) + 1 :]
        elif recent:
            listed = set(recent) if is_delta else {_listed_id(item) for item in self._listed(thread)}
            new = [each for each in new if each not in listed]
        rest = self._append_all_but_rest(key, [_to_item(found[each], each) for each in new])
        return {key: rest} if rest else {}

    def _messages(self, values: Mapping[str, Any], parent_writes: Rows) -> dict[str, BaseMessage]:
        """The messages of a checkpoint by id; those that its step has added, if they are in a delta channel."""
        found = values.get(MESSAGES)
        if isinstance(found, _DeltaSnapshot):
            found = found.value
        elif MESSAGES not in values:
            own = {key: row for key, row in parent_writes.items() if row["channel"] == MESSAGES}
            written = [value if isinstance(value, list) else [value] for _, _, value in self._load_writes(own)]
            found = [each for part in written for each in part if not isinstance(each, RemoveMessage)]
        return _by_id(found)

    def _writes_of(self, thread: str, checkpoint_id: str | None) -> Rows:
        """The pending writes of a checkpoint of the root graph."""
        found = self._read(_row_key(thread, "c", "", checkpoint_id)) if checkpoint_id else None
        return found[1] if found else {}

    def _delete_from_list(self, thread: str, checkpoint_ids: Collection[str]) -> None:
        """Delete the messages from a thread's list that only these checkpoints have."""
        gone: set[str] = set()
        left: set[str] = set()
        rows = {row["id"]: (row, writes) for row, writes in self._latest_first(_prefix(thread, "c", ""), LARGEST_PAGE)}
        for name, (row, _) in rows.items():
            parent_writes = rows[row["parent"]][1] if row["parent"] in rows else {}
            ids = gone if name in checkpoint_ids else left
            ids.update(self._messages(self._to_tuple(row, {}).checkpoint["channel_values"], parent_writes))
        gone -= left
        if gone:
            self._replace_list(thread, [item for item in self._listed(thread) if _listed_id(item) not in gone])

    def _listed(self, thread: str) -> Messages:
        found: Messages = self._memory.get(_list_key(thread), [])
        return found

    def _replace_list(self, thread: str, items: Messages) -> None:
        """Replace the list of a thread; of what a kill leaves out, the next checkpoint appends the messages it has."""
        key = _list_key(thread)
        self._memory.delete(key)
        if rest := self._append_all_but_rest(key, items):
            self._memory.append(key, *rest)

    def _append_all_but_rest(self, key: str, items: Messages) -> Messages:
        """Append items in calls of 2 MiB, and return the rest: what one call writes with a checkpoint."""
        rest: Messages = []
        size = 0
        for item in items:
            length = byte_size(encode(item))
            if rest and size + length > APPEND_BYTES:
                self._memory.append(key, *rest)
                rest, size = [], 0
            rest.append(item)
            size += length
        return rest

    def _checkpoints(self, prefix: str) -> Iterator[dict[str, Any]]:
        """The rows of checkpoints, without pending writes."""
        return (row for row in self._memory.values(prefix) if "id" in row)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """A text that sorts after the current version; the random part keeps two branches apart."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - not a secret

    def _metadata(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._load(row["state"])["metadata"]
        return found

    def _load(self, row: Mapping[str, Any], key: str = "") -> Any:
        data = load_text(self._memory, key, row) if row.get("parts") else row["data"]
        return self.serde.loads_typed((row["type"], base64.b64decode(data or "")))

    # ------------------------------------------------------------ the same for asyncio

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await read(self.get_tuple, config)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Walk all ancestors of a checkpoint in one thread; LangGraph's own walk changes threads for each of them."""
        return await read(partial(self.get_delta_channel_history, config=config, channels=channels))

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


def _row_key(thread: str, kind: str, *parts: str) -> str:
    return session_key(session_name(thread), join_key(ROOT, kind, *parts))


def _prefix(thread: str, kind: str, *parts: str) -> str:
    return f"{_row_key(thread, kind, *parts)}/"


def _list_key(thread: str) -> str:
    """The key of the list of a thread's messages."""
    return session_key(session_name(thread))


def _by_id(messages: Any) -> dict[str, BaseMessage]:
    """The messages of a channel; one without an id gets one from its position and content."""
    if not isinstance(messages, list | tuple):
        return {}
    return {_id(each, at): each for at, each in enumerate(messages) if isinstance(each, BaseMessage)}


def _id(message: BaseMessage, position: int) -> str:
    if message.id:
        return message.id
    text = f"{position} {message.type} {message.content}"
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _listed_id(item: Any) -> str:
    """The id of an item of a list; empty for one that is not an adapter's, as a program may have appended it."""
    return str(item.get("id", "")) if isinstance(item, dict) else ""


def _to_item(message: BaseMessage, message_id: str) -> dict[str, Any]:
    """A message as an item of a conversation."""
    fields = {"type": message.type, "content": message.content}
    fields |= {name: value for name in _LISTED if (value := getattr(message, name, None))}
    try:
        item = entry(plain(fields), id=message_id)
        if byte_size(encode(item)) <= MESSAGE_BYTES:
            return item
    except InvalidInput:  # JSON has no NaN, for example
        pass
    parts = [message.content] if isinstance(message.content, str) else message.content
    texts = [part if isinstance(part, str) else str(part.get("text", "")) for part in parts]
    return entry({"type": message.type, "content": first_bytes("\n".join(texts))}, id=message_id)


def _fits(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


def _encoded(blob: tuple[str, bytes]) -> dict[str, str]:
    kind, data = blob
    return {"type": kind, "data": base64.b64encode(data).decode()}


# ------------------------------------------------------------ the store


class ScrubjayStore(BaseStore):
    """A store: values of long-term memory under namespaces, found by key, by filter and by their words.

    `search(…, query=…)` finds words in whatever form; it needs no model and no `index`.

    :param memory: a Memory or AsyncMemory, or the name of a namespace.
    :param ttl: LangGraph's TTLConfig, in minutes: default_ttl, refresh_on_read.
    """

    supports_ttl = True

    def __init__(self, memory: Memory | AsyncMemory | str = "langgraph-store", *, ttl: TTLConfig | None = None) -> None:
        self._memory = open_memory(memory, strict=True)
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
        found = self._ranked(op) if op.query else [(item, None) for item in self._latest(op)]
        self._refresh([item for item, _ in found], op.refresh_ttl)
        return [SearchItem(**_fields(item), score=score) for item, score in found]

    def _latest(self, op: SearchOp) -> Sequence[StoredItem]:
        """The items below a namespace that fit a filter, the latest first."""
        where = {"value": _representable(plain(op.filter))} if op.filter else {}
        if op.limit == 0:
            return []
        if op.limit <= MAX_RECALL:
            return self._memory.find(_below(op), where=where, limit=op.limit, offset=op.offset)
        # Not page by page: a find sorts all items for each page, and what changes between two moves to another one.
        fitting = (item for item in self._memory.scan(_below(op)) if matches(item.value, where))
        return nlargest(op.offset + op.limit, fitting, key=lambda item: item.updated_at)[op.offset :]

    def _ranked(self, op: SearchOp) -> list[tuple[StoredItem, float]]:
        """The items below a namespace that fit a query and a filter, the best first."""
        where = plain(op.filter or {})
        found = self._memory.search(str(op.query), _below(op), limit=1000)
        found = [match for match in found if matches(match.value["value"], where)]
        page = ((self._memory.item(match.key), match.score) for match in found[op.offset : op.offset + op.limit])
        return [(item, score) for item, score in page if item is not None]

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
    """Raise ValueError for names that LangGraph's own stores refuse, and for unknown operators."""
    for name, expected in check_filter(wanted or {}).items():
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise ValueError(f"Invalid filter key {name!r}: use letters, digits, _ . and -")
        if isinstance(expected, Mapping) and not has_operators(expected):
            _check_filter(expected)


def _representable(condition: Any) -> Any:
    """A filter as JSON: a number stands for infinity that is greater than every float, and a text, which has no order
    among numbers and equals none, for NaN.
    """
    if isinstance(condition, dict):
        return {name: _representable(part) for name, part in condition.items()}
    if not isinstance(condition, float) or math.isfinite(condition):
        return condition
    if math.isnan(condition):
        return "NaN"
    return HUGE if condition > 0 else -HUGE


def _meets(path: tuple[str, ...], condition: MatchCondition) -> bool:
    wanted = condition.path
    if len(path) < len(wanted):
        return False
    part = path[: len(wanted)] if condition.match_type == "prefix" else path[len(path) - len(wanted) :]
    return all(label in ("*", own) for label, own in zip(wanted, part, strict=True))
