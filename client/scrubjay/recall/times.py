"""Times in texts: "yesterday", "last week", "on Monday", "in March", "5 March 2026" as days and months.

A time is a set of labels, each a day ("2026-03-05") or a month ("2026-03"). The index has those of the day on which a
note was written and of the days that it mentions, so that a query with a time finds the notes of that time like any
other term. Days are UTC, and weeks start on Monday.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from functools import cache
from typing import NamedTuple

from scrubjay.recall import word_lists
from scrubjay.recall.terms import normalize, split_words

MAX_LABELS = 62
"""Labels of one text: two months of days."""
MAX_TIME_CHARS = 2000
"""Characters of a note in which times are looked for, from its start."""


_UNITS = ("days", "weeks", "months", "years")
_WORD = re.compile(r"[a-z]+")


class Times(NamedTuple):
    """The times that a text mentions, and the text without the words for them."""

    labels: frozenset[str]
    rest: str

    @property
    def is_open(self) -> bool:
        """Whether the text asks for nothing but a time, such as "What happened on Monday?"."""
        ignored = word_lists.all_languages() | word_lists.open_questions()
        return bool(self.labels) and all(word in ignored for word in split_words(self.rest))


def find_times(text: str, now: datetime) -> Times:
    """The times in a text that was written or asked `now`; a text without any comes back as it is."""
    is_ascii = text.isascii()
    plain = text.lower() if is_ascii else normalize(text)
    if is_ascii and _hints().isdisjoint(_WORD.findall(plain)) and "-" not in plain:
        return Times(frozenset(), text)
    labels: set[str] = set()

    def take(found: re.Match[str]) -> str:
        read = set(_read(found, now.date()))
        labels.update(read)
        return " " if read else found[0]

    rest = _pattern(is_ascii=is_ascii).sub(take, plain)
    return Times(frozenset(sorted(labels)[:MAX_LABELS]), rest) if labels else Times(frozenset(), text)


def labels_of_note(text: str, created: datetime) -> set[str]:
    """The labels by which a note is found: the day it was written, the days it mentions, and their months."""
    labels = {f"{created:%Y-%m-%d}", *find_times(text[:MAX_TIME_CHARS], created).labels}
    return labels | {label[:7] for label in labels}


@cache
def _pattern(*, is_ascii: bool) -> re.Pattern[str]:
    """All forms of a time, with a name for each of its parts; a name that several forms have ends in underscores."""
    kinds = word_lists.times()
    spaced = {kind: _any_of(word for word in words if word[0] < "⺀") for kind, words in kinds.items()}
    month, year = spaced["month names"], r"(?:,?\s+(?:of\s+)?(?P<year{}>(?:19|20)\d\d))"
    forms = [
        r"(?P<iso>\d{4}-\d\d-\d\d)",
        rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?\s+(?:of\s+|de\s+)?(?P<month>{month})\b{year.format('')}?",
        rf"(?P<month_>{month})\s+(?P<day_>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:){year.format('_')}?",
        rf"(?P<month__>{month}){year.format('__')}",
        rf"(?:in|im|en|since|until|early|mid|late|last|this|next|of)[\s-]+(?P<month___>{month})",
        r"in\s+(?P<year___>(?:19|20)\d\d)",
        rf"(?P<number>\d{{1,3}}|{spaced['numbers']})\s+(?P<unit>day|week|month|year)s?\s+ago",
        rf"(?:earlier\s+)?(?:{'|'.join(f'(?P<{kind}>{spaced[kind]})' for kind in _UNITS)})",
        rf"(?:(?P<which>last|next)\s+|on\s+)?(?P<weekdays>{spaced['weekdays']})(?:'s)?",
    ]
    pattern = rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)"
    if not is_ascii:
        unspaced = {kind: _any_of(word for word in words if word[0] >= "⺀") for kind, words in kinds.items()}
        pattern += r"|(?:(?P<year____>\d{4})年)?(?P<month____>\d{1,2})月(?:(?P<day____>\d{1,2})[日号])?"
        pattern += "".join(f"|(?P<{kind}_>{unspaced[kind]})" for kind in (*_UNITS, "weekdays"))
    return re.compile(pattern)


@cache
def _hints() -> frozenset[str]:
    """Words of which a text with a time has at least one."""
    words = (word for kind, words in word_lists.times().items() if kind != "numbers" for word in words)
    return frozenset(part for word in words for part in word.split("_")) | {"ago", "in"}


def _any_of(words: Iterable[str]) -> str:
    longest = sorted(words, key=len, reverse=True)
    return "|".join(re.escape(word).replace("_", r"[\s'’-]") for word in longest)


def _read(found: re.Match[str], today: date) -> Iterator[str]:
    """The labels of a match; none if it is not a date, such as 31 June."""
    parts = {name.rstrip("_"): text for name, text in found.groupdict().items() if text is not None}
    try:
        yield from _readers(parts, today)
    except (ValueError, OverflowError):
        return


def _readers(parts: dict[str, str], today: date) -> Iterator[str]:
    kinds = word_lists.times()
    match parts:
        case {"iso": text}:
            yield date.fromisoformat(text).isoformat()
        case {"month": month, **rest}:
            number = int(month) if month.isdigit() else kinds["month names"][month]
            yield from _days_or_months(rest.get("day"), number, rest.get("year"), today)
        case {"year": year}:
            yield from _months(int(year), 1, 12)
        case {"number": number, "unit": unit}:
            count = int(number) if number.isdigit() else kinds["numbers"][number]
            yield from _around(f"{unit}s", -count, today)
        case {"weekdays": weekday}:
            yield from _weekdays(kinds["weekdays"][weekday], parts.get("which"), today)
        case _:
            for kind, text in parts.items():
                yield from _around(kind, kinds[kind][re.sub(r"[\s'’-]", "_", text)], today)


def _around(kind: str, count: int, today: date) -> Iterator[str]:
    """The day, week, month or year that is so many of them from today; days further away than a few are vague."""
    if kind == "days":
        spread = abs(count) > 3
        yield from _days(today + timedelta(count - spread), 1 + 2 * spread)
    elif kind == "weeks":
        yield from _days(today + timedelta(7 * count - today.weekday()), 7)
    elif kind == "months":
        number = 12 * today.year + today.month - 1 + count
        yield from _months(number // 12, number % 12 + 1, 1)
    else:
        yield from _months(today.year + count, 1, 12)


def _days(first: date, count: int) -> Iterator[str]:
    for number in range(count):
        yield (first + timedelta(number)).isoformat()


def _months(year: int, first: int, count: int) -> Iterator[str]:
    for month in range(first, first + count):
        yield date(year, month, 1).isoformat()[:7]


def _days_or_months(day: str | None, month: int, year: str | None, today: date) -> Iterator[str]:
    for each in _years(month, year, today):
        if day is None:
            yield from _months(each, month, 1)
        else:
            yield date(each, month, int(day)).isoformat()


def _years(month: int, year: str | None, today: date) -> Iterator[int]:
    """The year, or, of a month without one, the nearest, and the last that is not in the future."""
    if year:
        yield int(year)
        return
    yield today.year if month <= today.month else today.year - 1
    if month - today.month > 6:
        return
    if month > today.month:
        yield today.year
    elif today.month - month > 6:
        yield today.year + 1


def _weekdays(weekday: int, which: str | None, today: date) -> Iterator[str]:
    """The last such day and the next one; "last" may also be the one of last week."""
    since = (today.weekday() - weekday) % 7
    last = today - timedelta(since)
    if which == "last":
        yield from (each.isoformat() for each in {last if since else last - timedelta(7), _monday(today, weekday - 7)})
    elif which == "next":
        yield from (each.isoformat() for each in {last + timedelta(7), _monday(today, weekday + 7)})
    else:
        yield last.isoformat()
        yield (last + timedelta(7)).isoformat()


def _monday(today: date, days: int) -> date:
    """The day that is so many after the Monday of this week."""
    return today + timedelta(days - today.weekday())
