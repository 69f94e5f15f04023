"""What children ask of their supervisor, over a real socket and from real forks."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from prorl_celery.node.requests import BEAT, NO_SUPERVISOR, RETIRE, SOLO, Request, Requests, SupervisorLine


@pytest.fixture
def requests() -> Iterator[Requests]:
    ends = Requests()
    yield ends
    ends.close()


def in_a_child(act: Callable[[], object]) -> int:
    """Run it in a fork that ends with it; the fork's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


def test_a_request_comes_with_the_pid_of_who_made_it(requests: Requests) -> None:
    first = in_a_child(requests.line.beat)
    second = in_a_child(requests.line.want_solo)
    assert requests.read() == [Request(first, BEAT), Request(second, SOLO)]
    assert requests.read() == []


def test_who_retires_says_so_again_at_each_beat_since_the_word_may_be_lost(requests: Requests) -> None:
    def retires() -> None:
        requests.line.retire()
        requests.line.beat()

    pid = in_a_child(retires)
    assert [request.op for request in requests.read()] == [RETIRE, BEAT, RETIRE]
    assert requests.read() == []
    assert pid


def test_no_child_waits_for_a_supervisor_that_does_not_read(requests: Requests) -> None:
    def floods() -> None:
        for _ in range(5000):
            requests.line.beat()

    pid = in_a_child(floods)
    found = requests.read()
    assert set(found) == {Request(pid, BEAT)}
    assert 0 < len(found) <= 1000


def test_what_is_no_request_is_passed_over(requests: Requests) -> None:
    ours, theirs = requests.descriptors
    assert ours == requests.descriptor

    def babbles() -> None:
        end = socket.socket(fileno=theirs)
        for word in (b"", b"beat", b"[1]", b'{"op": ["beat"]}', b'{"op": "fly"}', b"\xff", b'"' + b"x" * 400):
            end.send(word)
        requests.line.beat()

    pid = in_a_child(babbles)
    assert requests.read() == [Request(pid, BEAT)]


def test_a_line_outlives_the_supervisor_and_there_may_be_none(requests: Requests) -> None:
    requests.line.beat()  # our own word is nobody's request
    assert requests.read() == []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.close()
    line = SupervisorLine(theirs)
    line.beat()
    line.retire()
    theirs.close()
    NO_SUPERVISOR.beat()
    NO_SUPERVISOR.retire()
    NO_SUPERVISOR.want_solo()


def test_a_supervisor_that_executed_itself_anew_reads_on_and_hands_the_descriptors_to_no_program(
    requests: Requests,
) -> None:
    pid = in_a_child(requests.line.beat)
    copies = tuple(os.dup(descriptor) for descriptor in requests.descriptors)
    for copy in copies:
        os.set_inheritable(copy, True)
    adopted = Requests.adopt((copies[0], copies[1]))
    assert adopted.read() == [Request(pid, BEAT)]
    assert not any(os.get_inheritable(descriptor) for descriptor in adopted.descriptors)
    adopted.close()
