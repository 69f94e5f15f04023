"""What a command does to its own shell, in every kind of sandbox: none of it reaches the commands that follow."""

from __future__ import annotations

import pytest
from sandbox_images import needs_singularity

from prorl_celery.sandbox import prompts
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.settings import Settings

KINDS = ["bubblewrap", "local", pytest.param("singularity", marks=needs_singularity)]

DISTURBS = r"""
exec >/dev/null
exec 2>&-
exec >&- 2>&-
exec </dev/null
exec </dev/tty
exec 1>&2 2>&1
exec > >(cat)
exec 2> >(cat >/dev/null)
exec 247>&-
exec 247>/dev/full
exec 255>&-
set -e
set -eu -o pipefail
set -f
set -k
set -n
set -u
set -v
set -x
set -C
set -r
set +m
set -o posix
shopt -s extdebug
shopt -s lastpipe nocasematch failglob
shopt -u expand_aliases
trap '' INT TERM HUP
trap 'x=$x' DEBUG
trap ': error' ERR; false
trap 'echo bye' EXIT
trap ': return' RETURN
PS1='(venv) $ '
PS1="(venv) $PS1"
PS1= PS2= PS4=
PS4='$(date) '; set -x
unset PS1 PS2 PS4 PROMPT_COMMAND PWD
PROMPT_COMMAND='echo noise'
PROMPT_COMMAND=(false false)
PROMPT_COMMAND=exit
PS1=x PROMPT_COMMAND='PS1=y'
unset __p_id __prorl_nonce
__p_id=x
unset -f $(compgen -A function)
unset $(compgen -v | grep -v ^x$)
printf() { echo mine; }
set() { echo mine; }
exec() { echo mine; }
unset() { echo mine; }
eval() { echo mine; }
function builtin { echo mine; }
alias printf='echo a' eval='echo b' builtin='echo c' exec='echo d' set='echo e' PS1=f
enable -n printf
enable -n eval
enable -n builtin
IFS=0123456789
IFS=
PATH=
LC_ALL=xx_YY
LINENO=5 RANDOM=1 FUNCNEST=1
SHELLOPTS=x
ulimit -f 0
ulimit -t 100
umask 777
stty intr x susp y quit z </dev/tty
stty raw -echo </dev/tty
stty -isig </dev/tty
stty sane </dev/tty
stty 0 </dev/tty
stty cols 20 rows 5 </dev/tty
cd /tmp && mkdir gone-$$ && cd gone-$$ && rmdir ../gone-$$
export BIG=$(head -c 300000 /dev/zero | tr '\0' x)
bash
sh
python3
cat
read answer
su </dev/null
kill -INT $$
kill -TERM $$
kill -QUIT $$
kill -TSTP $$
declare -i number=1+
echo ${none?message}
echo $((1/0))
readonly fixed=1; fixed=2
return 3
break
fg
wait
.
[[
${
$(
"
'
`
((
{
(
)
|
&
;
<<
cat <<END
if true
case x in
echo a \
!!
"""

REPLACES = r"""
exit
exit 3
logout 2>/dev/null || exit
exec true
set -e; false
set -t
kill -9 $$
kill -HUP $$
kill -SEGV $$
kill -STOP $$
suspend
readonly PS1
readonly __p_id
ulimit -n 3
exec 0<&- 1>&- 2>&-; for fd in $(seq 3 255); do eval "exec $fd>&-"; done
"""


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1", allow_unsafe_local=True)


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest, start) -> LiveSandbox:
    if request.param == "singularity":
        return start(image=str(request.getfixturevalue("jail_parts").image))
    return start(kind=request.param)


def test_the_state_that_a_command_leaves_disturbs_none_that_follows(sandbox):
    wrong = {}
    for command in DISTURBS.strip("\n").split("\n"):
        sandbox.shell.run("x=kept", timeout=20)
        result = sandbox.shell.run(command, timeout=20)
        again = sandbox.shell.run('echo "after $x"', timeout=20)
        if result.timed_out or not again.output.endswith("after kept\n") or again.exit_code != 0:
            wrong[command] = (result, again)
        sandbox.shell.run("exit", timeout=20)
    assert not wrong, "\n".join(f"{command!r}: {results}" for command, results in wrong.items())


def test_a_shell_that_ends_or_is_of_no_use_any_more_is_replaced(sandbox):
    wrong = {}
    for command in REPLACES.strip("\n").split("\n"):
        result = sandbox.shell.run(command, timeout=20)
        again = sandbox.shell.run("echo after", timeout=20)
        restarted = result.shell_restarted or again.shell_restarted
        if result.timed_out or not restarted or not again.output.endswith("after\n") or again.exit_code != 0:
            wrong[command] = (result, again)
    assert not wrong


@pytest.mark.parametrize(
    "command",
    ["shopt -s extdebug; trap false DEBUG", "readonly PS1=mine", "alias PS1='#' {='#'; shopt -u promptvars"],
)
def test_a_shell_that_does_not_answer_any_more_is_replaced(start, command, monkeypatch):
    monkeypatch.setattr(prompts, "TIDY_SECONDS", 0.5)
    sandbox = start()
    sandbox.shell.run(command, timeout=0.5)
    result = sandbox.shell.run("echo after", timeout=20)
    assert (result.output, result.exit_code) == ("after\n", 0)
