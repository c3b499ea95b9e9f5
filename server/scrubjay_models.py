"""Pydantic models of the request bodies and responses of /v1.

A request model validates with the functions of scrubjay.validation and scrubjay.exact_json, so that the service and
the client refuse the same things, in the same words. Values are any JSON and have to come back exactly: a field that
holds one is validated into its JSON text and is never converted by Pydantic.

A response model only describes: the service returns finished JSON, and tests/server/test_openapi.py compares them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    SkipValidation,
    StrictBool,
    ValidationInfo,
    WithJsonSchema,
)

from scrubjay.calls import check_versions, commands_of, transaction_call
from scrubjay.commands import Command
from scrubjay.errors import InvalidInput, repr_short
from scrubjay.exact_json import MAX_WRITE_ROWS, check_read, check_rows, check_total, encode
from scrubjay.filters import MAX_NAMES, encode_filter
from scrubjay.recall.prompt import CONTEXT_THRESHOLD
from scrubjay.validation import (
    DAY_SECONDS,
    MAX_COUNT,
    MAX_KEY_BYTES,
    MAX_NAMESPACE_CHARS,
    MAX_RECALL,
    MAX_SECONDS,
    MAX_TAGS,
    NewNote,
    RecallQuery,
    check_count,
    check_key,
    check_label,
    check_prefix,
    check_query,
    check_ttl,
)

NAME_PATTERN = r"^[^/\x00-\x1f\x7f-\x9f]+$"
"""Of a namespace, in the OpenAPI document; scrubjay.validation has the rule."""


def _value_text(value: Any, info: ValidationInfo) -> str | None:
    return None if value is None else encode(value, str(info.field_name))


def _item_texts(parts: Any) -> list[str]:
    if not isinstance(parts, list):
        raise InvalidInput(f"items is a list of values, not {repr_short(parts)}")
    check_rows(len(parts))
    texts = [encode(part, f"items[{i}]") for i, part in enumerate(parts)]
    check_total(texts)
    return texts


def _texts_by_key(values: Any) -> dict[str, str | None]:
    if not isinstance(values, dict):
        raise InvalidInput(f"values is an object of keys and values, not {repr_short(values)}")
    texts = {
        check_key(key): None if value is None else encode(value, f"values[{repr_short(key)}]")
        for key, value in values.items()
    }
    check_total([*texts, *filter(None, texts.values())])
    return texts


def _versions(versions: Any) -> dict[str, int] | None:
    return None if versions is None else check_versions(versions)


def _object_text(value: Any, info: ValidationInfo) -> str:
    if not isinstance(value, dict):
        raise InvalidInput(f"{info.field_name} is an object of names and values, not {repr_short(value)}")
    return encode(value, str(info.field_name))


def _keys(keys: Any) -> list[str]:
    if not isinstance(keys, list):
        raise InvalidInput(f"keys is a list of keys, not {repr_short(keys)}")
    checked = [check_key(key) for key in keys]
    check_read(checked)
    return checked


def _number(value: Any, info: ValidationInfo) -> float:
    if type(value) not in (int, float):
        raise InvalidInput(f"{info.field_name} is a number, not {repr_short(value)}")
    encode(value, str(info.field_name))
    return value  # type: ignore[no-any-return]


def _limit(value: Any, info: ValidationInfo) -> int | None:
    return None if value is None else _count(value, info)


def _count(value: Any, info: ValidationInfo) -> int:
    return check_count(str(info.field_name), value)


_label = BeforeValidator(lambda value, info: check_label(info.field_name, value))
_key_schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_BYTES}
_count_schema: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
_rows_schema: dict[str, Any] = {"type": "object", "propertyNames": _key_schema, "maxProperties": MAX_WRITE_ROWS}

# Schemas count characters where the rules count bytes.
Label = Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES)]
OptionalLabel = Annotated[Label | None, _label]
Tags = Annotated[list[Label], Field(max_length=MAX_TAGS)]
Content = Annotated[str, Field(pattern=r"\S")]
Seconds = Annotated[
    Annotated[float, Field(gt=0, le=MAX_SECONDS, description="seconds")] | None, BeforeValidator(check_ttl)
]
Days = Annotated[float | None, Field(gt=0, le=MAX_SECONDS / DAY_SECONDS)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAMESPACE_CHARS, pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Recalled = Annotated[int, Field(ge=1, le=MAX_RECALL)]
Score = Annotated[float, Field(ge=0, le=1)]
Metadata = dict[str, JsonValue] | None
ValueText = Annotated[Any, PlainValidator(_value_text), WithJsonSchema({})]
"""A JSON value, validated into its JSON text; None stays None."""
ItemTexts = Annotated[
    list[str],
    PlainValidator(_item_texts),
    WithJsonSchema({"type": "array", "items": {}, "maxItems": MAX_WRITE_ROWS}),
]
KeyText = Annotated[str, PlainValidator(check_key), WithJsonSchema(_key_schema)]
PrefixText = Annotated[
    str,
    PlainValidator(check_prefix),
    WithJsonSchema({"type": "string", "maxLength": MAX_KEY_BYTES}),
]
Number = Annotated[float, PlainValidator(_number), WithJsonSchema({"type": "number"})]
Version = Annotated[
    int | None,
    PlainValidator(_limit),
    WithJsonSchema({"anyOf": [_count_schema, {"type": "null"}]}),
    Field(description="only if the key is at this version; 0 = it does not exist"),
]


class StrictBody(BaseModel):
    """A request body whose unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


# ---------------------------------------------------------------- request bodies


class SetItemBody(StrictBody):
    value: ValueText = Field(description="any JSON; null deletes")
    ttl: Seconds = None


class UpdateItemsBody(StrictBody):
    values: Annotated[
        dict[str, str | None],
        PlainValidator(_texts_by_key),
        WithJsonSchema({**_rows_schema, "additionalProperties": True}),
    ] = Field(description="null deletes")
    if_versions: Annotated[
        dict[str, int] | None,
        PlainValidator(_versions),
        WithJsonSchema(
            {
                "anyOf": [
                    {**_rows_schema, "additionalProperties": _count_schema},
                    {"type": "null"},
                ]
            }
        ),
    ] = Field(None, description="only if each of these keys is at its version; 0 = it does not exist")
    ttl: Seconds = None

    def model_post_init(self, _context: Any) -> None:
        check_rows(len(self.values) + len(self.if_versions or ()))


class MergeItemBody(StrictBody):
    fields: Annotated[str, PlainValidator(_object_text), WithJsonSchema({"type": "object"})] = Field(
        description="null removes a field"
    )


class TouchItemBody(StrictBody):
    ttl: Seconds = Field(description="null removes the expiry")


_ONCE = Field(None, description="an id of the sender's own: sent again with it, this does not happen twice")


class AppendItemsBody(StrictBody):
    items: ItemTexts
    once: OptionalLabel = _ONCE


class IncrementBody(StrictBody):
    by: Number = 1
    once: OptionalLabel = _ONCE


class ReadItemsBody(StrictBody):
    keys: Annotated[list[str], PlainValidator(_keys), WithJsonSchema({"type": "array", "items": _key_schema})]


class NoteFields(BaseModel):
    """The fields of a new note, which `NewNote.check` validates together."""

    content: SkipValidation[Content]
    type: SkipValidation[Label | None] = None
    tags: SkipValidation[Tags | None] = None
    session: SkipValidation[Label | None] = None
    ttl: SkipValidation[Annotated[float, Field(gt=0, le=MAX_SECONDS, description="seconds")] | None] = None
    ttl_days: SkipValidation[Days] = None
    pinned: SkipValidation[bool] = Field(default=False, description="never expires")
    metadata: SkipValidation[Metadata] = None
    supersedes: SkipValidation[Tags | None] = Field(None, description="ids of notes that it replaces")

    _note: NewNote

    def model_post_init(self, _context: Any) -> None:
        fields = {name: getattr(self, name) for name in NoteFields.model_fields}
        self._note = NewNote.check(**fields, id=getattr(self, "id", None))

    @property
    def note(self) -> NewNote:
        return self._note


class RememberBody(StrictBody, NoteFields):
    id: SkipValidation[Label | None] = Field(None, description="of your own: it replaces the note that has this id")

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"properties": {unit: {"type": "null"}}} for unit in ("ttl", "ttl_days")]}
    )


class Part(StrictBody):
    """A write of a transaction, described for the OpenAPI document: `commands_of` validates it."""

    verb: str


class SetCommand(SetItemBody, Part):
    verb: Literal["set"]
    key: KeyText
    if_version: Version = None


class DeleteCommand(Part):
    verb: Literal["delete"]
    key: KeyText
    if_version: Version = None


class UpdateCommand(UpdateItemsBody, Part):
    verb: Literal["update"]


class MergeCommand(MergeItemBody, Part):
    verb: Literal["merge"]
    key: KeyText


class TouchCommand(TouchItemBody, Part):
    verb: Literal["touch"]
    key: KeyText


class IncrCommand(Part):
    verb: Literal["incr"]
    key: KeyText
    by: Number = 1


class ClearCommand(Part):
    verb: Literal["clear"]
    prefix: PrefixText = ""


class AppendCommand(Part):
    verb: Literal["append"]
    key: KeyText
    items: ItemTexts


class PopCommand(Part):
    verb: Literal["pop"]
    key: KeyText
    n: Annotated[int, PlainValidator(_count), WithJsonSchema(_count_schema)] = 1
    first: StrictBool = False


class RememberCommand(RememberBody, Part):
    verb: Literal["remember"]


class ForgetCommand(Part):
    verb: Literal["forget"]
    key: KeyText = Field(description="the id of a note")


class ForgetSessionCommand(Part):
    verb: Literal["forget_session"]
    key: KeyText = Field(description="the name of a session")


class TransactionBody(StrictBody):
    commands: SkipValidation[
        list[
            Annotated[
                SetCommand
                | DeleteCommand
                | UpdateCommand
                | MergeCommand
                | TouchCommand
                | IncrCommand
                | ClearCommand
                | AppendCommand
                | PopCommand
                | RememberCommand
                | ForgetCommand
                | ForgetSessionCommand,
                Field(discriminator="verb"),
            ]
        ]
    ] = Field(
        description="writes that all happen or none", min_length=1, json_schema_extra={"maxItems": MAX_WRITE_ROWS}
    )
    once: OptionalLabel = _ONCE

    def command(self, namespace: str) -> Command:
        """The command of the request, for a namespace."""
        if self.commands == []:
            raise InvalidInput("commands is an empty list; a transaction has at least one write")
        return transaction_call(namespace, commands_of(namespace, self.commands, "commands"))


class RecallBody(StrictBody):
    """The fields of a query, which `RecallQuery.check` validates together."""

    query: SkipValidation[str]
    limit: SkipValidation[Recalled] = 5
    type: SkipValidation[Label | None] = None
    tags: SkipValidation[Tags | None] = Field(None, description="a note has to have all of them")
    session: SkipValidation[Label | None] = None
    threshold: SkipValidation[Score | None] = Field(None, description="the least score, from 0 to 1")
    ranking: SkipValidation[Literal["relevance", "confidence"] | None] = None
    explain: SkipValidation[bool] = Field(False, description="give each note an explanation of its score")
    at: SkipValidation[datetime | None] = Field(None, description="only notes written by then; with a time zone")

    default_threshold: ClassVar[float] = 0.0
    _recall_query: RecallQuery

    def model_post_init(self, _context: Any) -> None:
        fields = {name: getattr(self, name) for name in RecallBody.model_fields}
        if self.threshold is None:
            fields["threshold"] = self.default_threshold
        self._recall_query = RecallQuery.check(**fields)

    @property
    def recall_query(self) -> RecallQuery:
        return self._recall_query


class FindBody(StrictBody):
    prefix: PrefixText = ""
    where: Annotated[
        str,
        PlainValidator(encode_filter),
        WithJsonSchema({"type": "object", "additionalProperties": True, "maxProperties": MAX_NAMES}),
    ] = Field(
        "{}", description="fields and the values or operators that they have to meet", json_schema_extra={"default": {}}
    )
    limit: Annotated[
        int,
        PlainValidator(lambda value: check_count("limit", value, least=1, most=MAX_RECALL)),
        WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_RECALL}),
    ] = 10
    offset: Annotated[
        int,
        PlainValidator(lambda value: check_count("offset", value)),
        WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_COUNT}),
    ] = 0


class SearchBody(StrictBody):
    query: Annotated[str, PlainValidator(check_query), WithJsonSchema({"type": "string"})]
    prefix: PrefixText = ""
    limit: Annotated[Recalled, BeforeValidator(lambda value: check_count("limit", value, least=1, most=MAX_RECALL))] = (
        10
    )


class InjectContextBody(RecallBody):
    limit: SkipValidation[Recalled] = 8
    threshold: SkipValidation[Score | None] = Field(
        None, description=f"the least score, from 0 to 1; {CONTEXT_THRESHOLD} if it is not given"
    )
    default_threshold: ClassVar[float] = CONTEXT_THRESHOLD
    max_tokens: Annotated[Count, BeforeValidator(lambda value: check_count("max_tokens", value))] = 400


Limit = Annotated[Count | None, BeforeValidator(_limit), Field(description="0 = no limit, null = the server's default")]


class SetQuotaBody(StrictBody):
    writes_per_day: Limit = None
    max_bytes: Limit = None


class KeyQuotaBody(StrictBody):
    """Limits of an api key, over all its namespaces."""

    writes_per_day: Limit = None
    max_bytes: Limit = None
    max_namespaces: Limit = None

    @property
    def given(self) -> dict[str, int | None]:
        return self.model_dump(include=self.model_fields_set)


class IssueApiKeyBody(StrictBody):
    """The operation that issues a key validates the names and patterns."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {
                    "properties": {
                        "admin": {"const": False},
                        "exact": {"const": False},
                        "namespaces": {"items": {"pattern": NAME_PATTERN.replace("/", "/,")}},
                    }
                },
                {"properties": {"admin": {"const": False}, "exact": {"const": True}}, "required": ["exact"]},
                {
                    "properties": {
                        "read_only": {"const": False},
                        "namespaces": {"const": ["*"]},
                        "exact": {"const": False},
                        "limits": {"maxProperties": 0},
                    }
                },
            ]
        }
    )

    name: SkipValidation[Name]
    namespaces: list[SkipValidation[Name]] = Field(["*"], description="patterns, such as support-*", min_length=1)
    exact: StrictBool = Field(default=False, description="namespaces has names, in which * and commas mean themselves")
    read_only: StrictBool = False
    admin: StrictBool = Field(default=False, description="has every namespace, may write, and has no limits")
    limits: KeyQuotaBody = Field(KeyQuotaBody(), description="over all namespaces of the key")


# ---------------------------------------------------------------- responses


class ErrorResult(BaseModel):
    code: str = Field(examples=["invalid_input"])
    detail: str = Field(description="the cause and the fix")


class TransactionResult(BaseModel):
    results: list[Any] = Field(
        description="of each write: a version, a length, items, the number of a note …; null for items if sent again"
    )


class ItemResult(BaseModel):
    key: str
    value: JsonValue
    version: int
    created_at: str
    updated_at: str
    expires_at: str | None
    bytes: int


class UsageResult(BaseModel):
    namespace: str
    keys: int
    notes: int
    bytes: int
    max_bytes: int = Field(description="0 = no limit")
    writes_today: int
    writes_per_day: int = Field(description="0 = no limit")
    resets_at: str


class VersionResult(BaseModel):
    version: int = Field(description="0 = deleted")


class KeysResult(BaseModel):
    keys: list[str] = Field(description="sorted; send the last one as `after` to get the next page")


class ItemsResult(BaseModel):
    items: list[ItemResult]
    cursor: str | None = Field(description="send it as `after` to get the next page; null on the last")


class FoundResult(BaseModel):
    items: list[ItemResult]


class DeletedResult(BaseModel):
    deleted: int


class LengthResult(BaseModel):
    length: int


class ListItemsResult(BaseModel):
    items: list[JsonValue]


class NumberResult(BaseModel):
    value: float


class ValuesResult(BaseModel):
    values: dict[str, JsonValue]


class UpdatedResult(BaseModel):
    updated: int


class ChangeResult(BaseModel):
    id: int = Field(description="a cursor to watch from; refusals have numbers of their own")
    at: str
    who: str = Field(description="the name of the api key")
    verb: str = Field(examples=["set"])
    namespace: str
    key: str = Field(description="empty when it concerns all keys")
    bytes: int
    refusal: str | None = Field(description="the code of the error, if it was refused")
    times: int = Field(description="how often it was refused in that second")


class ChangesResult(BaseModel):
    changes: list[ChangeResult]
    cursor: int


class AuditResult(BaseModel):
    changes: list[ChangeResult]
    cursor: str = Field(description="send it as `after` to get the next page")


class NamespacesResult(BaseModel):
    namespaces: list[str]


class StatusResult(BaseModel):
    status: str
    version: str


class NoteResult(BaseModel):
    id: str
    content: str
    type: str | None
    tags: list[str]
    session: str | None
    metadata: dict[str, JsonValue]
    pinned: bool
    times: int = Field(description="how often it was remembered")
    created_at: str
    updated_at: str
    expires_at: str | None
    superseded_by: str | None = Field(description="the number of the note that replaced it and is recalled")
    score: float | None = Field(description="how well it matches the query, from 0 to 1; null without a query")
    explanation: dict[str, JsonValue] | None = Field(None, description="how the score came about, with `explain`")
    number: str | None = Field(None, description="the store's number of a note with an id of your own")


class NotesResult(BaseModel):
    notes: list[NoteResult]


class ConversationResult(BaseModel):
    session: str = Field(description="whose conversation it is; a list of the user's own has its key here")
    key: str = Field(description="the key of the list")
    messages: int = Field(description="how many there are")
    updated_at: str
    participants: list[str] = Field(description="who has sent the last messages")
    preview: str = Field(description="the start of the last message that has a text")


class ConversationsResult(BaseModel):
    conversations: list[ConversationResult]
    cursor: str | None = Field(description="send it as `after` to get the next page; null on the last")


class ToolCallResult(BaseModel):
    id: str
    name: str
    arguments: JsonValue


class ToolResultResult(BaseModel):
    id: str = Field(description="the id of the call")
    name: str
    content: str


class MessageResult(BaseModel):
    id: str = Field(description="the position as text if the message was stored without an id")
    position: int = Field(description="where it is in the list, from 0: send it as `before` or `after`")
    sender: str
    role: str = Field(examples=["user", "assistant", "system", "tool"])
    message: str = Field(description="the text")
    time: str | None
    tool_calls: list[ToolCallResult]
    tool_results: list[ToolResultResult]


class MessagesResult(BaseModel):
    messages: list[MessageResult]


class MatchResult(BaseModel):
    key: str
    position: int | None = Field(description="the number of the item in its list; null for a value")
    value: JsonValue
    score: float = Field(description="how well it fits the query, from 0 to 1")


class MatchesResult(BaseModel):
    matches: list[MatchResult]


class ContextResult(BaseModel):
    context: str


class ApiKeyResult(BaseModel):
    id: str
    name: str
    namespaces: list[str]
    read_only: bool
    admin: bool
    created_at: str
    writes_per_day: int | None = Field(description="0 = no limit, null = the server's default; so for every limit")
    max_bytes: int | None
    max_namespaces: int | None
    writes_today: int
    bytes: int = Field(description="of the namespaces that were empty when this key wrote to them")
    namespaces_in_use: int = Field(description="how many of these there are")


class ApiKeysResult(BaseModel):
    apikeys: list[ApiKeyResult]


class IssuedApiKeyResult(ApiKeyResult):
    key: str = Field(description="the key itself, shown only now")
    admin_key: str | None = Field(description="an admin key that comes with it while no other key is in force")
    first: bool = Field(description="no other key was in force: from now on every request needs one")


class RotatedApiKeyResult(BaseModel):
    key: str = Field(description="the new key, shown only now")


class ImportedResult(BaseModel):
    namespace: str
    keys: int
    notes: int


class NamedApiKey(BaseModel):
    id: str
    name: str
    is_revoked: bool


class ErasedResult(BaseModel):
    namespace: str
    rows: dict[str, int] = Field(description="erased rows of each table")
    samples: int = Field(description="random samples of the erased data that were searched for in the files")
    shared: int = Field(description="samples that were found because another namespace has the same data")
    files: list[str]
    bytes: int
    traces: list[str] = Field(description="where erased text was found; empty if it is gone")
    limits: str = Field("", description="what the database engine cannot promise about copies that it keeps itself")
    keys: list[NamedApiKey] = Field(
        description="api keys that still have the name of the namespace; DELETE with forget=true removes it"
    )


class WhoResult(BaseModel):
    name: str | None = Field(description="the name of the api key; null if none was sent, and one is needed")
    namespaces: list[str] = Field(description="the patterns of the namespaces that it may see")
    read_only: bool
    admin: bool
    needs_key: bool = Field(description="false while no api key was ever issued")
    expires_at: str | None = Field(description="when the sign-in ends, if a cookie was sent")


class LabelCountResult(BaseModel):
    label: str
    notes: int = Field(description="how many notes have it")


class LabelsResult(BaseModel):
    types: list[LabelCountResult]
    tags: list[LabelCountResult]
    sessions: list[LabelCountResult]


class NamespaceSummaryResult(BaseModel):
    namespace: str
    keys: int
    notes: int
    bytes: int
    max_bytes: int = Field(description="0 = no limit")
    writes_today: int
    writes_per_day: int = Field(description="0 = no limit")
    changed_at: str | None
    has_conversation: bool = Field(description="whether it holds a list whose last item is a message")


class EntryResult(BaseModel):
    key: str
    length: int | None = Field(description="how many items it has, if it is a list")
    bytes: int
    version: int
    updated_at: str
    expires_at: str | None
    preview: str = Field(
        description="the start of its JSON text; empty for a list that grows in place and for a value over 64 KiB"
    )


class EntriesResult(BaseModel):
    entries: list[EntryResult] = Field(description="sorted; send the last key as `after` to get the next page")


class TotalsResult(BaseModel):
    namespaces: int
    keys: int
    notes: int
    bytes: int


class OverviewResult(BaseModel):
    namespaces: list[NamespaceSummaryResult]
    totals: TotalsResult = Field(description="over all pages")


class PointResult(BaseModel):
    at: str
    changes: int
    bytes: int = Field(description="bytes of the changed values")
    refused: int


class ServerPointResult(PointResult):
    requests: int
    reads: int
    writes: int
    recalls: int
    failed: int = Field(description="requests that got a status of 500 or more")
    recall_ms: float | None = Field(description="mean time to answer a recall, in milliseconds")
    max_recall_ms: float | None


class ActivityResult(BaseModel):
    step: int = Field(description="minutes of a point")
    points: list[PointResult]
    recent: list[ChangeResult] = Field(description="newest first")


class ServerActivityResult(ActivityResult):
    points: list[ServerPointResult]  # type: ignore[assignment]
