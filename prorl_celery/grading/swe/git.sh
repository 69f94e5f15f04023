# What is done in a sandbox beside a repository, by git programs that see no configuration but ours. This stands before
# patch.sh or apply.sh, and the call of a function of theirs behind: bash -c ALL prorl WORK KEPT COMMAND ARGUMENTS
# WORK is the repository's folder, KEPT a folder of ours on the same disk, with the base as a bare store in KEPT/base.git.
# Nothing here reads the configuration, the index, the hooks or the attributes of WORK/.git: whoever owns that may have
# changed them. Exit codes: 3 WORK is gone, 4 the base is gone, 5 it is too much, 6 the disk is full, 7 does not apply.
set -u
work=$1 kept=$2 command=$3
shift 3
export LC_ALL=C HOME=$kept/home GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1
export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 GIT_PAGER=cat GIT_WORK_TREE=$work
export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost

# A git folder of ours at $GIT_DIR: bytes are taken as they are, whatever .gitattributes says.
fresh() {
  git init -q --template= || return
  printf '[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n\tfileMode = true\n\tsymlinks = true\n' >"$GIT_DIR/config"
  printf '\tautocrlf = false\n\thooksPath = /dev/null\n\tfsmonitor = false\n\texcludesFile = /dev/null\n' >>"$GIT_DIR/config"
  printf '[gc]\n\tauto = 0\n[diff]\n\tignoreSubmodules = all\n\trenames = false\n' >>"$GIT_DIR/config"
  mkdir -p "$GIT_DIR/info"
  echo '* -text -filter -ident -working-tree-encoding !diff !merge !eol !whitespace' >"$GIT_DIR/info/attributes"
  # What tools leave behind by themselves, and environments.
  printf '%s\n' __pycache__/ '*.py[co]' .pytest_cache/ .mypy_cache/ .ruff_cache/ .hypothesis/ .ipynb_checkpoints/ .tox/ \
    .venv/ '*.egg-info/' .DS_Store >"$GIT_DIR/info/exclude"
}

# Files that are neither ignored nor in the index. A repository within is told as a folder, which no index takes.
untracked() { git ls-files -o -z --exclude-standard; }

# Bring the index to what the files are. What is ignored stays in it if it was.
snapshot() {
  # A pipe or a socket in a file's place: the file is gone.
  find . -name .git -prune -o ! -type f ! -type d ! -type l -print0 | git update-index --force-remove -z --stdin
  git add -u . 2>"$scratch/said" || { chmod -R u+rwX . 2>>"$scratch/said"; git add -u . 2>>"$scratch/said"; } || return
  untracked >"$scratch/new"
  git update-index --add --remove -z --stdin <"$scratch/new" 2>>"$scratch/said"
}

# Remove all files of these, and leave the folders: an overlay without extended attributes can neither remove a folder of
# the image nor make one in the place of one that was removed.
remove() {
  find "$@" ! -type d -delete 2>/dev/null
  [[ -z $(find "$@" ! -type d -print -quit 2>/dev/null) ]]
}

fail() {
  local code=$1
  shift
  [[ -s ${scratch:-}/said ]] && tail -c 2000 "$scratch/said" >&2
  local free
  { read -r _ && read -r _ _ _ free _; } < <(df -P "${scratch:-$kept}" 2>/dev/null) && (( free < 64 )) && code=6
  echo "$*" >&2
  exit "$code"
}
