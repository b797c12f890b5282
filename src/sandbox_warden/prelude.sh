# Read by every bash of the box when it starts (BASH_ENV), long before it knows its command. Its
# descriptors: 200 is this text, 201 will hold the state to start from, 202 takes the state at the
# end, 203 tells when to go, 204 will hold the call. The rest is in ARGV of shell.py: wait, load the
# state (at the top level, or its variables would be local to a function), begin, run the command.
unset -v BASH_ENV
shopt -s expand_aliases
__sandbox_options() {
  # Sets __sandbox_todo to what turns the options $2 into the options $3, for `shopt` or `set`.
  local IFS=: name on=-o off=+o
  [[ $1 == shopt ]] && on=-s off=-u
  __sandbox_todo=
  for name in $2; do [[ :$3: == *":$name:"* ]] || __sandbox_todo+="$1 $off $name;"; done
  for name in $3; do [[ :$2: == *":$name:"* ]] || __sandbox_todo+="$1 $on $name;"; done
}
__sandbox_set=
exec 200<&-
__sandbox_save() {
  {
    unset -f trap __sandbox_save __sandbox_options __sandbox_wait __sandbox_begin
    unset -v RANDOM SRANDOM BASH BASHPID BASH_ALIASES BASH_ARGV0 BASH_CMDS BASH_COMMAND \
      BASH_EXECUTION_STRING BASH_LOADABLES_PATH BASH_SUBSHELL BASH_VERSION COMP_WORDBREAKS DIRSTACK \
      EPOCHREALTIME EPOCHSECONDS FUNCNAME GROUPS HISTCMD HOSTTYPE LINENO MACHTYPE OSTYPE PIPESTATUS \
      __sandbox_go __sandbox_call __sandbox_command __sandbox_todo
    printf '#%s\ncd -- %q\n' "${PWD//$'\n'/?}" "$PWD"
    printf '[[ $BASHOPTS == %q ]] || { __sandbox_options shopt "$BASHOPTS" %q; eval "$__sandbox_todo"; }\n' \
      "$BASHOPTS" "$BASHOPTS"
    umask -p
    declare -p
    printf '%s\n__sandbox_set=%q\n' "$__sandbox_restore" "$SHELLOPTS"
    declare -f
    declare -Fx
    alias -p
    printf '#end\n'
  } >&202 2>/dev/null || :
  return "$1"
}
trap() {
  # The user's own EXIT trap runs after the state has been saved, not instead of it.
  builtin trap "$@" || return
  [[ $BASH_SUBSHELL == 0 ]] || return 0
  local handler
  handler=$(builtin trap -p EXIT)
  [[ $handler == *__sandbox_save* ]] && return
  eval "set -- $handler"
  builtin trap -- '{ __sandbox_save "$?"; } 2>/dev/null;'"${3-}" EXIT
}
__sandbox_wait() {
  # A shell that is never called leaves without a word.
  read -rN1 -u203 __sandbox_go || exit 0
}
__sandbox_begin() {
  __sandbox_restore=
  mapfile -d '' -u204 __sandbox_call
  exec 201<&- 203<&- 204<&-
  if [[ ! . -ef $PWD ]]; then
    printf 'sandbox: %s is gone, starting in /workspace\n' "$PWD" >&2
    cd /workspace
  fi
  builtin trap '{ __sandbox_save "$?"; } 2>/dev/null' EXIT
  eval "${__sandbox_call[0]}"
  # Options such as errexit and xtrace begin with the command, on its first line.
  __sandbox_todo=
  [[ ! $__sandbox_set || $__sandbox_set == "$SHELLOPTS" ]] ||
    __sandbox_options set "$SHELLOPTS" "$__sandbox_set"
  __sandbox_command=$__sandbox_todo${__sandbox_call[1]}
}
echo 1000 2>/dev/null >/proc/self/oom_score_adj
