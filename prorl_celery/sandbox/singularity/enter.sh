# The first thing that runs inside an instance: makes of what the program leaves there what `init.sh` expects.
#
# Given: the arguments of `bash` on `init.sh`, and "again" after them when an earlier one was killed.
# bash would stop itself when it takes the terminal from outside its pid namespace. Process 1 is spared that; this is not.
trap "" TTOU TTIN
if [[ ${!#} == again ]]; then
  kill -9 -1
  set -- "${@:1:$#-1}"
fi
# The image's own variables stay; the program's tell of the host.
unset ${!APPTAINER_*} ${!SINGULARITY_*} PROMPT_COMMAND PS1 OLDPWD
[[ ${LD_LIBRARY_PATH-} != /.singularity.d/libs ]] || unset LD_LIBRARY_PATH
exec bash "$@"
