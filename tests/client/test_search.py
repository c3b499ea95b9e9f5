"""Search: words in values and in lists, found by reading them."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import run_command
from scrubjay import InvalidInput, Match
from scrubjay.conversations import entry, session_key
from scrubjay.exact_json import encode
from scrubjay.recall import word_lists
from scrubjay.recall.documents import MAX_NEEDLES, MAX_SCORED_CHARS, count_needles, excerpt, needles_of
from scrubjay.recall.query import analyze, split_passages
from scrubjay.recall.terms import term_of
from scrubjay.store import search as search_module


@pytest.fixture
def chat(memory):
    memory.append(
        session_key("work"),
        entry({"role": "user", "content": "Which database should we take?"}, sender="user"),
        entry({"role": "assistant", "content": "Take PostgreSQL: it has transactions."}, sender="bot"),
        entry({"role": "user", "content": "Lunch at noon?"}, sender="user"),
    )
    memory.set("favourite_colour", "blue")
    memory.set("notes", ["We decided on databases in Zürich", {"city": "Bonn"}])
    return memory


def found(matches: list[Match]) -> list[tuple[str, int | None]]:
    return [(match.key, match.position) for match in matches]


def test_a_message_is_found_by_its_words(chat):
    (match,) = chat.search("PostgreSQL")
    assert (match.key, match.position) == ("session:work:messages", 1)
    assert match.value["message"]["content"] == "Take PostgreSQL: it has transactions."
    assert 0 < match.score <= 1


def test_words_are_found_in_other_forms_and_without_accents(chat):
    assert found(chat.search("databases")) == found(chat.search("What about the database?"))
    assert set(found(chat.search("database"))) == {("notes", 0), ("session:work:messages", 0)}
    assert found(chat.search("zurich")) == [("notes", 0)]
    assert found(chat.search("BONN")) == [("notes", 1)]


FORMS = [
    *("bake baking", "drive driving", "love loves", "price pricing", "type typed", "use using", "note notes noted"),
    *("key keys", "city cities", "buying buy", "ids id", "happiness happy", "solubility soluble", "hopping hop"),
    *("chevaux cheval", "الكتاب كتاب", "Tuer Tür", "Tür Tuer"),
]


@pytest.mark.parametrize("words", FORMS)
def test_search_finds_the_words_that_recall_finds(tmp_path, words):
    from scrubjay import Memory

    with Memory("ns", path=tmp_path / "db") as memory:
        for number, word in enumerate(words.split()):
            memory.set(f"{number}", {"text": f"\n{word}\tA_thing"})
            memory.remember(f"{word} and more")
        for word in words.split():
            assert len(memory.recall(word)) == len(words.split())
            assert len(memory.search(word)) == len(words.split())


def needles(query: str) -> list[re.Pattern[str]]:
    return needles_of([analyze(text) for text in split_passages(query)])


def test_the_name_of_a_month_finds_dates(memory):
    memory.update({"a": "Lunch on 2026-03-05", "b": "Lunch on 2026-04-03"})
    assert found(memory.search("march")) == [("a", None)]


SUFFIXES = [
    *("s", "es", "ed", "ing", "ings", "er", "ly", "y", "ies", "ied", "ying", "ful", "fully", "fulness", "ness", "ment"),
    *("ation", "ational", "ization", "ize", "izing", "ity", "bility", "able", "ability", "ably", "ance", "ence", "ive"),
    *("ative", "ical", "ically", "ousness", "iveness", "al", "ally", "en", "a", "o", "aux", "eli", "logy"),
]


@given(
    st.one_of(st.sampled_from(sorted(word_lists.english())), st.from_regex(r"[a-z]{1,9}", fullmatch=True)),
    st.lists(st.sampled_from(SUFFIXES), min_size=1, max_size=8),
)
@settings(max_examples=200)
@example("hik", ["e", "ing", "es"])
def test_all_words_that_recall_takes_as_one_pass_the_test_for_candidates(start, suffixes):
    words = [start, f"{start}e", *(start + end for end in suffixes), *(start + start[-1] + end for end in suffixes)]
    words += [word.replace(vowel, f"{vowel}e", 1) for word in words for vowel in "aou"]
    same = defaultdict(set)
    for word in words:
        same[term_of(word)].add(word)
    for group in same.values():
        for word in group:
            (needle,) = needles(word)
            assert all(count_needles(encode({"text": f"\n{other}!"}), [needle]) for other in group)


def test_a_short_word_is_not_found_in_others():
    (needle,) = needles("go")
    assert all(map(needle.search, ("go", "going", "goes", "go_on", "(go)")))
    assert not any(map(needle.search, ("google", "ego", "gone")))


def test_a_value_is_found_by_its_key_too(chat):
    assert found(chat.search("colour")) == [("favourite_colour", None)]


def test_the_more_words_fit_the_better(chat):
    best, *others = chat.search("decided databases Zürich lunch")
    assert (best.key, best.position) == ("notes", 0)
    assert others
    assert all(match.score < best.score for match in others)


def test_a_word_anywhere_in_a_long_text_is_found(memory):
    filler = "filler words " * 20_000
    memory.set("long", f"{filler}Ein WALNÚT {filler}")
    memory.set("short", "one walnut")
    assert found(memory.search("walnuts")) == [("short", None), ("long", None)]


def test_a_long_text_is_scored_by_what_surrounds_the_words_of_the_query():
    text = f"{'a ' * 5000}Walnut tree{' b' * 5000}Hazel"
    part = excerpt(text, needles("walnut hazel oak"))
    assert "walnut tree b" in part
    assert part.endswith("hazel")
    assert len(part) <= MAX_SCORED_CHARS
    assert excerpt("Walnut", needles("hazel")) == "Walnut"


def test_a_long_query_is_searched_for_by_its_longest_words():
    query = " ".join(f"word{'x' * number}" for number in range(100))
    found = needles(query)
    assert len(found) == MAX_NEEDLES
    assert min(len(needle.pattern) for needle in found) > MAX_NEEDLES


def test_names_of_fields_are_not_searched(chat):
    assert chat.search("role content sender") == []


def test_a_prefix_and_a_limit_narrow_the_search(chat):
    assert found(chat.search("database", "notes")) == [("notes", 0)]
    assert len(chat.search("database", limit=1)) == 1
    assert chat.search("database", "nope") == []


def test_what_has_expired_or_is_deleted_is_not_found(memory):
    memory.set("a", "walnut")
    memory.append("l", "walnut")
    memory.touch("l", 0.001)
    memory.delete("a")
    while memory.length("l"):
        pass
    assert memory.search("walnut") == []


def test_more_than_a_search_may_read_is_refused_with_the_way_out(tmp_path, monkeypatch):
    from scrubjay import Memory

    monkeypatch.setattr(search_module, "MAX_SEARCH_BYTES", 20)
    with Memory("ns", path=tmp_path / "db") as memory:
        memory.update({"a/1": "walnut", "b/1": "walnut"})
        with pytest.raises(InvalidInput, match="longer prefix"):
            memory.search("walnut")
        assert found(memory.search("walnut", "a/")) == [("a/1", None)]


@pytest.mark.parametrize("wrong", [{"query": 1}, {"limit": 0}, {"prefix": 3}])
def test_wrong_arguments_are_refused(memory, wrong):
    with pytest.raises(InvalidInput):
        memory.search(**{"query": "x", **wrong})


def test_encrypted_values_are_found(tmp_path):
    pytest.importorskip("cryptography")
    from scrubjay import Memory

    with Memory("ns", path=tmp_path / "db", secret="correct horse battery") as memory:
        memory.append("l", "a walnut")
        memory.set("v", {"tree": "walnut"})
        assert sorted(found(memory.search("walnuts")), key=str) == [("l", 0), ("v", None)]


def test_the_command_prints_what_it_finds(tmp_path):
    where = {"SCRUBJAY_PATH": str(tmp_path / "db")}
    run_command("set", "ns", "city", "Berlin", **where)
    printed = run_command("search", "ns", "berlin", **where).stdout
    assert printed.startswith(b'{"key": "city", "position": null, "value": "Berlin", "score": ')
