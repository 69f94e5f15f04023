# Of an eval's sandbox; behind git.sh. Applying a patch, and the tests' files as they were before.

# The names by which test runners and Python take in files that nobody asked for.
guarded() { find . -name .git -prune -o ! -type d \( -name conftest.py -o -name sitecustomize.py -o -name usercustomize.py \
  -o -name '*.pth' -o -name pytest.ini -o -name .pytest.ini \) -print0; }
shadows() { find . -name .git -prune -o \( -name pytest -o -name pytest.py -o -name _pytest -o -name _pytest.py \
  -o -name pluggy -o -name pluggy.py -o -name unittest -o -name unittest.py \) -prune -print0; }

# kept_as_they_are SPARED PATH...: all of these names but the lines of SPARED, and PATH... in any case.
kept_as_they_are() {
  local spared=$1 name
  shift
  {
    guarded | while IFS= read -r -d '' name; do
      [[ $'\n'$spared == *$'\n'"$name"$'\n'* ]] || printf '%s\0' "$name"
    done
    for name; do [[ ! -e $name && ! -L $name ]] || find "./$name" ! -type d -print0; done
  } | sort -zu
}

# guard SPARED PATH...: note the files by which tests are run, and these, as they are now.
guard() {
  cd -P -- "$work" || exit 3
  kept_as_they_are "$@" >"$kept/guarded"
  shadows | sort -z >"$kept/shadows"
  tar -cf "$kept/guarded.tar" --no-recursion --null -T "$kept/guarded" || fail 1 "the tests' files could not be put by"
}

# restore SPARED PATH...: put them back, and remove those that are new; the names of what was otherwise are printed.
restore() {
  cd -P -- "$work" || exit 3
  local name
  mkdir -p "$kept/now" && cd "$kept/now" && tar -xf "$kept/guarded.tar" && cd -P -- "$work" || exit 6
  while IFS= read -r -d '' name; do
    if [[ -L $name || -L $kept/now/$name ]]; then
      [[ $(readlink -- "$name") == $(readlink -- "$kept/now/$name") ]] && continue
    elif cmp -s -- "$name" "$kept/now/$name"; then
      continue
    fi
    printf '%s\n' "${name#./}"
    remove "$name" || fail 1 "$name cannot be removed"
  done < <({ kept_as_they_are "$@"; cat "$kept/guarded"; } | sort -zu)
  comm -z -13 "$kept/shadows" <(shadows | sort -z) | while IFS= read -r -d '' name; do
    printf '%s\n' "${name#./}"
    remove "$name" || fail 1 "$name cannot be removed"
  done
  tar -xf "$kept/guarded.tar" || fail 6 "the tests' files could not be put back"
}

# apply PATCH [keep]: by git, then by patch with some fuzz, all of it or nothing. Says which. With `keep` it must fit
# exactly, and belongs to what a failed attempt goes back to from now on.
apply() {
  scratch=$kept
  cd -P -- "$work" || exit 3
  export GIT_DIR=$kept/base.git
  if git apply --whitespace=nowarn "$1" 2>"$kept/said"; then
    if [[ ${2:-} == keep ]]; then
      snapshot && git update-ref HEAD "$(git commit-tree -m kept "$(git write-tree)")" || fail 1 "it could not be kept"
    fi
    echo git
    return
  fi
  back || fail 1 "what a failed attempt left could not be undone"
  # Unlike git, patch writes into .git; a name in quotes may hide that.
  local into_git='^([-+*]{3}|Index:|diff|rename|copy) .*(\.git([/[:space:]]|$)|"[^"]*\\)'
  if [[ ${2:-} != keep ]] && command -v patch >/dev/null && ! grep -qaiE "$into_git" -- "$1"; then
    local options=(-p1 -u --batch --forward --fuzz=5 --binary --no-backup-if-mismatch -r - -i "$1")
    if patch --dry-run "${options[@]}" >>"$kept/said" 2>&1 && patch "${options[@]}" >>"$kept/said" 2>&1; then
      echo patch
      return
    fi
    back || fail 1 "what a failed attempt left could not be undone"
  fi
  fail 7 "it does not apply"
}

back() { git reset -q --hard && git clean -fdq; }

# undo: go back to the base, and what was kept since.
undo() {
  cd -P -- "$work" || exit 3
  export GIT_DIR=$kept/base.git
  back || exit 1
}
