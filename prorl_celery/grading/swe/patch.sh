# Of an agent's sandbox; behind git.sh. Keeping the base, and the difference from it.

# base [hide]: keep what the files are as the base; its commit is printed. With `hide` the base stands by itself, and
# WORK/.git becomes a repository of that one commit, so that nothing later is in it; else it borrows what WORK/.git has.
base() {
  cd -P -- "$work" || exit 3
  rm -rf -- "$kept"
  mkdir -p "$kept/home" || exit 6
  scratch=$kept/scratch GIT_DIR=$kept/base.git
  mkdir "$scratch"
  export GIT_DIR
  local tree= date=0 tag=
  if [[ -e .git ]]; then
    if GIT_DIR=$work/.git git rev-parse -q --verify HEAD >/dev/null; then
      tree=$(GIT_DIR=$work/.git git rev-parse -q --verify 'HEAD^{tree}') || fail 1 "the repository's own commit is not there"
    fi
    date=$(GIT_DIR=$work/.git git log -1 --format=%ct 2>/dev/null)
    tag=$(GIT_DIR=$work/.git git describe --tags --abbrev=0 2>/dev/null)
    GIT_ALTERNATE_OBJECT_DIRECTORIES=$(GIT_DIR=$work/.git git rev-parse --git-path objects)
    export GIT_ALTERNATE_OBJECT_DIRECTORIES
  fi
  fresh || fail 1 "no git folder could be made"
  [[ -z $tree ]] || git read-tree "$tree" || fail 1 "the repository's own commit cannot be read"
  snapshot || fail 1 "the files could not be taken down"
  export GIT_AUTHOR_DATE="@${date:-0} +0000" GIT_COMMITTER_DATE="@${date:-0} +0000"
  local commit
  commit=$(git commit-tree -m base "$(git write-tree)") || fail 1 "no commit could be made"
  git symbolic-ref HEAD refs/heads/main && git update-ref refs/heads/main "$commit" || fail 1 "no branch could be made"
  [[ -z $tag ]] || git update-ref "refs/tags/$tag" "$commit"
  if [[ ${1:-} == hide ]]; then
    git -c pack.window=0 repack -adq || fail 1 "the base could not be packed"
  elif [[ -n ${GIT_ALTERNATE_OBJECT_DIRECTORIES:-} ]]; then
    printf '%s\n' "$GIT_ALTERNATE_OBJECT_DIRECTORIES" >"$GIT_DIR/objects/info/alternates"
  fi
  unset GIT_ALTERNATE_OBJECT_DIRECTORIES
  git cat-file -e "$commit^{tree}" || fail 1 "the base is not complete"
  if [[ ${1:-} == hide ]]; then
    remove ./.git && mkdir -p .git && cp -R "$GIT_DIR/." .git || fail 1 "the repository's history could not be put away"
    rm -f .git/info/attributes
    printf '[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n\tfileMode = true\n' >.git/config
    printf '[user]\n\tname = agent\n\temail = agent@localhost\n' >>.git/config
  fi
  rm -rf "$scratch"
  echo "$commit"
}

# Each file stands for itself: no renames, so that leaving one out leaves nothing of it.
as=(--cached --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/ --dst-prefix=b/)

# take SCRATCH BASE LIMIT PROTECTED...: the difference from the base in SCRATCH/patch, the names in it in SCRATCH/names and
# those that were left out in SCRATCH/left. At most LIMIT bytes of files may be new or changed (times 16, of a patch once).
take() {
  scratch=$1
  local base=$2 limit=$3 name total=0
  shift 3
  cd -P -- "$work" || exit 3
  rm -rf -- "$scratch" && mkdir -p "$scratch" || fail 6 "no folder for the patch could be made"
  export GIT_DIR=$scratch/git GIT_ALTERNATE_OBJECT_DIRECTORIES=$kept/base.git/objects
  fresh || fail 1 "no git folder could be made"
  if ! git cat-file -e "$base^{tree}" 2>/dev/null; then
    GIT_ALTERNATE_OBJECT_DIRECTORIES=$work/.git/objects
  fi
  git read-tree "$base^{tree}" 2>"$scratch/said" || fail 4 "the base that was kept beside the repository is gone"
  git update-index -q --refresh >/dev/null 2>&1
  while IFS= read -r -d '' name; do
    [[ -L $name || ! -f $name ]] || (( total += $(stat -c %s -- "$name") ))
    (( total <= limit * 16 )) || fail 5 "files of more than $((limit * 16)) bytes are new or changed"
  done < <(git diff-files --name-only -z; untracked)
  snapshot || fail 1 "the files could not be taken down"
  local outside=(.) inside=()
  for name; do
    outside+=(":(exclude,literal)$name")
    inside+=(":(literal)$name")
  done
  git diff --cached --name-only -z --no-renames "$base" -- "${outside[@]}" >"$scratch/names" || fail 1 "no list of names"
  : >"$scratch/left"
  (( $# == 0 )) || git diff --cached --name-only -z --no-renames "$base" -- "${inside[@]}" | head -c 65536 >"$scratch/left"
  git diff "${as[@]}" "$base" -- "${outside[@]}" | head -c $((limit + 1)) >"$scratch/patch"
  local codes=("${PIPESTATUS[@]}")
  (( codes[1] == 0 )) || fail 6 "no room for the patch"
  (( $(stat -c %s "$scratch/patch") <= limit )) || fail 5 "the patch is longer than $limit bytes"
  (( codes[0] == 0 )) || fail 1 "no difference could be made"
}

# encode SCRATCH BASE LIMIT NUMBER...: SCRATCH/patch again, with the files of these numbers in SCRATCH/names as binary ones.
encode() {
  scratch=$1
  local base=$2 limit=$3 number names texts=() others=()
  shift 3
  cd -P -- "$work" || exit 3
  export GIT_DIR=$scratch/git GIT_ALTERNATE_OBJECT_DIRECTORIES=$kept/base.git/objects:$work/.git/objects
  mapfile -d '' names <"$scratch/names"
  declare -A wanted=()
  for number; do wanted[$number]=1; done
  for number in "${!names[@]}"; do
    if [[ -n ${wanted[$number]:-} ]]; then others+=(":(literal)${names[number]}"); else texts+=(":(literal)${names[number]}"); fi
  done
  {
    (( ${#texts[@]} == 0 )) || printf '%s\0' "${texts[@]}" | batches "$base"
    sed -i 's/!diff/-diff/' "$GIT_DIR/info/attributes"
    printf '%s\0' "${others[@]}" | batches "$base"
  } | head -c $((limit + 1)) >"$scratch/patch"
  (( $(stat -c %s "$scratch/patch") <= limit )) || fail 5 "the patch is longer than $limit bytes"
}

# Differences of the files that are read, as many at a time as a command line holds.
batches() {
  xargs -0 -r -n 500 git diff "${as[@]}" "$1" --
}
