"""The file editor, on a real sandbox."""

from __future__ import annotations

import pytest


def test_a_created_file_is_viewed_with_line_numbers(edit):
    assert edit("create", file_text="one\ntwo\nthree\n") == "Created /workspace/file.txt."
    assert edit("view") == "/workspace/file.txt, lines 1 to 3 of 3:\n     1\tone\n     2\ttwo\n     3\tthree\n"


@pytest.mark.parametrize(
    ("span", "seen"), [([2, 3], ["two", "three"]), ([3, -1], ["three", "four"]), ([4, 9], ["four"])]
)
def test_a_range_shows_those_lines(edit, span, seen):
    edit("create", file_text="one\ntwo\nthree\nfour")
    lines = edit("view", view_range=span).splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == seen
    assert lines[0].strip().startswith(str(span[0]))


@pytest.mark.parametrize("span", [[0, 1], [3, 2], [9, 10], [1], [1, 2, 3], [-1, 2]])
def test_a_range_that_does_not_fit_is_told(edit, span):
    edit("create", file_text="one\ntwo\nthree\n")
    assert "view_range" in edit("view", view_range=span)


def test_a_folder_is_shown_two_levels_deep(edit, call):
    call("bash", command="mkdir -p a/b/c .git; touch a/b/c/deep a/top .git/x")
    seen = edit("view", path="/workspace").splitlines()
    assert seen[1:] == ["/workspace/a/", "/workspace/a/b/", "/workspace/a/top"]
    assert "folder" in edit("view", path="/workspace", view_range=[1, 2])


def test_create_does_not_overwrite(edit):
    edit("create", file_text="mine")
    assert "exists already" in edit("create", file_text="yours")
    edit("create", path="/workspace/empty", file_text="")
    assert "exists already" in edit("create", path="/workspace/empty", file_text="x")
    assert edit("view").endswith("\tmine\n")


def test_a_unique_text_is_replaced_and_the_change_shown(edit, call):
    edit("create", file_text="".join(f"line {n}\n" for n in range(1, 21)))
    answer = edit("str_replace", old_str="line 10\n", new_str="ten\nand a half\n")
    assert "    10\tten\n    11\tand a half\n    12\tline 11\n" in answer
    assert "line 1\n" not in answer
    assert call("bash", command="sed -n 9,12p file.txt").startswith("line 9\nten\nand a half\nline 11\n")


def test_replacing_without_new_text_deletes(edit, call):
    edit("create", file_text="keep drop keep")
    edit("str_replace", old_str=" drop")
    assert call("bash", command="cat file.txt").startswith("keep keep")


def test_a_text_that_is_missing_or_not_unique_changes_nothing(edit, call):
    edit("create", file_text="a\nb\na\n")
    assert "does not occur" in edit("str_replace", old_str="c", new_str="d")
    assert "2 times" in (answer := edit("str_replace", old_str="a", new_str="d"))
    assert "lines 1, 3" in answer
    assert "empty" in edit("str_replace", old_str="", new_str="d")
    assert call("bash", command="cat file.txt").startswith("a\nb\na\n")


@pytest.mark.parametrize(
    ("line", "text", "result"),
    [(0, "new", "new\na\nb\n"), (1, "new\n", "a\nnew\nb\n"), (2, "new", "a\nb\nnew"), (1, "x\ny", "a\nx\ny\nb\n")],
)
def test_insert_puts_text_after_a_line(edit, call, line, text, result):
    edit("create", file_text="a\nb\n")
    edit("insert", insert_line=line, new_str=text)
    assert call("bash", command="cat file.txt").startswith(result)


@pytest.mark.parametrize("line", [-1, 3, 100])
def test_an_insert_outside_the_file_is_told(edit, line):
    edit("create", file_text="a\nb\n")
    assert "from 0 to 2" in edit("insert", insert_line=line, new_str="x")


def test_undo_takes_back_one_change_at_a_time_and_then_says_so(edit):
    edit("create", file_text="one")
    edit("str_replace", old_str="one", new_str="two")
    edit("str_replace", old_str="two", new_str="three")
    for text in ("two", "one"):
        assert "Took back" in edit("undo_edit")
        assert edit("view").endswith(f"\t{text}\n")
    assert "no change" in edit("undo_edit")


def test_bytes_that_are_no_text_survive_an_edit(edit, call):
    call("bash", command=r"printf 'caf\351 \377\r\nplain\r\n' > file.txt")
    edit("str_replace", old_str="plain", new_str="fancy")
    assert call("bash", command="od -An -v -t x1 file.txt | tr -d ' \\n'").startswith("636166e920ff0d0a66616e63790d0a")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"command": "view", "path": "relative"}, "not absolute"),
        ({"command": "view", "path": "/nowhere"}, "does not exist"),
        ({"command": "view", "path": "/dev/null"}, "not a regular file"),
        ({"command": "create", "path": "/usr/new", "file_text": "x"}, "/usr/new"),
        ({"command": "create", "path": "/workspace", "file_text": "x"}, "folder"),
        ({"command": "create", "path": "/workspace/x"}, "needs file_text"),
        ({"command": "insert", "path": "/workspace/x", "new_str": "x"}, "needs insert_line"),
        ({"command": "str_replace", "path": "/nowhere", "old_str": "x"}, "does not exist"),
        ({"command": "view", "path": "/a\0b"}, "NUL"),
        ({"command": "view", "path": "/" + "x" * 300}, "/xxx"),
    ],
)
def test_what_cannot_be_done_is_an_observation(call, arguments, says):
    assert says in call("str_replace_editor", **arguments)


def test_a_long_file_is_cut_and_says_how_to_see_more(edit, call):
    call("bash", command="seq 100000 > file.txt")
    seen = edit("view")
    assert len(seen) < 70_000
    assert "view_range" in seen
    assert edit("view", view_range=[99999, -1]).endswith(" 99999\t99999\n100000\t100000\n")
