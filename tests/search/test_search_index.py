"""The index of our own: what it finds first, and which files it takes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from prorl_celery.errors import SettingsError
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.search.base import TEXT_CHARACTERS, Found
from prorl_celery.search.index import LocalIndex
from prorl_celery.search.opening import open_search
from prorl_celery.search.tavily import TavilySearch
from prorl_celery.settings import Settings

DOCUMENTS = [
    {"title": "Tides", "url": "http://x/tides", "text": "The moon's gravity raises the tides of the sea."},
    {"title": "Moon", "url": "http://x/moon", "text": "The moon goes round the earth in 27.3 days. The moon is grey."},
    {"title": "Iron", "url": "http://x/iron", "text": "Iron melts at 1811 K."},
    {"text": "Die Wärmeleitfähigkeit von Eisen ist 80 W/(m K)."},
]


def titles(index: LocalIndex, query: str, most: int, never: NeverCancelled) -> list[str]:
    return [found.title for found in index.search(query, most=most, cancel=never, timeout=1.0)]


def test_what_says_more_of_the_rarer_words_comes_first(never: NeverCancelled) -> None:
    index = LocalIndex(DOCUMENTS)
    assert titles(index, "why does the MOON raise tides?", 5, never)[:2] == ["Tides", "Moon"]
    assert titles(index, "moon", 1, never) == ["Moon"]
    assert titles(index, "iron", 5, never) == ["Iron"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a a a", "b"),  # 3 times of 3 words is worth 1.42, once of 1 word 1.26
        ("b", "a a x x x x"),  # once of 1 word is worth 1.41, twice of 6 words 1.14
    ],
)
def test_the_order_is_that_of_the_formula(never: NeverCancelled, first: str, second: str) -> None:
    """By hand, both words being as rare: count * 2.2 / (count + 1.2 * (0.25 + 0.75 * words / mean))."""
    for texts in ([first, second], [second, first]):
        index = LocalIndex({"text": text} for text in texts)
        assert [found.text for found in index.search("a b", most=2, cancel=never, timeout=1.0)] == [first, second]


def test_a_rarer_word_is_worth_more(never: NeverCancelled) -> None:
    index = LocalIndex({"text": text} for text in ("a", "a", "b"))
    assert [found.text for found in index.search("a b", most=3, cancel=never, timeout=1.0)] == ["b", "a", "a"]


def test_words_of_any_script_are_found_and_nothing_is_nothing(never: NeverCancelled) -> None:
    index = LocalIndex(DOCUMENTS)
    assert index.search("wärmeleitfähigkeit", most=1, cancel=never, timeout=1.0)[0].text.startswith("Die")
    assert index.search("zebra", most=3, cancel=never, timeout=1.0) == []
    assert LocalIndex([]).search("moon", most=3, cancel=never, timeout=1.0) == []


def test_of_a_long_document_the_part_that_was_looked_for_is_shown(never: NeverCancelled) -> None:
    index = LocalIndex([{"text": "dust " * 5000 + "a needle here " + "straw " * 5000}])
    [found] = index.search("needle", most=1, cancel=never, timeout=1.0)
    assert "needle" in found.text
    assert len(found.text) <= TEXT_CHARACTERS


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("[]", "line 2 is no object"),
        ('{"title": "x"}', "document 2 needs a text"),
        ('{"text": "x", "url": 5}', "document 2 needs a text"),
    ],
)
def test_a_bad_line_is_told_by_setting_file_and_place(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text(json.dumps(DOCUMENTS[0]) + "\n" + line + "\n")
    with pytest.raises(SettingsError, match=f"PRORL_SEARCH_INDEX.*documents.jsonl.*{says}"):
        LocalIndex.load(path)


def test_settings_say_which_search_there_is(tmp_path: Path, loop: ModelLoop, never: NeverCancelled) -> None:
    path = tmp_path / "documents.jsonl"
    with pytest.raises(SettingsError, match="PRORL_SEARCH_URL names a service for it, or PRORL_SEARCH_INDEX"):
        open_search(Settings(), loop)
    with pytest.raises(SettingsError, match="both set"):
        open_search(Settings(search_url="http://x", search_index=str(path)), loop)
    with pytest.raises(SettingsError, match=r"PRORL_SEARCH_INDEX: .*No such file"):
        open_search(Settings(search_index=str(path)), loop)
    assert isinstance(open_search(Settings(search_url="http://x/search"), loop), TavilySearch)
    path.write_text(json.dumps({"text": "one"}))
    first = open_search(Settings(search_index=str(path)), loop)
    assert open_search(Settings(search_index=str(path)), loop) is first
    path.write_text(json.dumps({"text": "two"}))
    os.utime(path, ns=(1, 1))
    second = open_search(Settings(search_index=str(path)), loop)
    assert second.search("two", most=1, cancel=never, timeout=1.0) == [Found("", "", "two")]


def test_an_index_is_read_once_by_many_at_once(
    tmp_path: Path, loop: ModelLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text(json.dumps({"text": "one"}))
    reads: list[Path] = []
    load = LocalIndex.load

    def counted(path: Path) -> LocalIndex:
        reads.append(path)
        threading.Event().wait(0.1)
        return load(path)

    monkeypatch.setattr(LocalIndex, "load", counted)
    settings = Settings(search_index=str(path))
    threads = [threading.Thread(target=open_search, args=(settings, loop)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1
