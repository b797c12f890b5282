# Read by every bash of the box when it starts (BASH_ENV), before it gets a command. Descriptors: 200
# is this text, 201 will hold the state to load, 202 takes the state at the end, 203 signals a call,
# 204 holds it, 205 takes the exit code of a command after which the shell waits for the next. The
# rest is in SCRIPT of shell.py: wait, load the state (at the top level, or its variables would be
# local to a function), begin, run the command.
#
# A state may define any function, alias and variable, so code that runs after it uses `builtin`
# (`\builtin` where it is parsed then), expands nothing unquoted and calls no second function. Our
# own names and functions named `builtin` and `trap` are never part of a state. KEY is replaced by a
# random key that marks a state, since a command may write to 202 too.
unset -v BASH_ENV
exec 200<&-
shopt -s expand_aliases
__sandbox_usual="$BASHOPTS $SHELLOPTS"
shopt -u expand_aliases
__sandbox_wait() {
  # A shell that never gets a call exits silently.
  read -rN1 -u203 __sandbox_go || exit 0
  mapfile -d '' -u204 __sandbox_call
  __sandbox_restore= __sandbox_lost= __sandbox_set= __sandbox_aliases= __sandbox_loaded=
}
__sandbox_load() {
  # Called by the first line of every state: its folder, its `shopt` and `set` options, and the
  # declaration that turns POSIX mode on. Aliases and `set` options take effect with the command.
  exec 201<&- # bash has read all of it by now.
  [[ $PWD == "$1" && . -ef $1 ]] || cd -- "$1" || [[ . -ef $1 ]] || __sandbox_lost=$1
  [[ ! $2 || $2 == "$__sandbox_usual" ]] || __sandbox_options ":${2% *}:" ":${2#* }:"
  [[ ! $3 ]] || __sandbox_set+="${3/#declare/\\builtin declare};"
}
__sandbox_options() {
  local IFS=: name
  [[ $1 == *:expand_aliases:* ]] || __sandbox_aliases=off
  set -- "${1/:expand_aliases:/:}" "${2/:posix:/:}"
  for name in $BASHOPTS; do [[ $1 == *":$name:"* ]] || shopt -u "$name"; done
  for name in $1; do [[ ! $name || :$BASHOPTS: == *":$name:"* ]] || shopt -s "$name"; done
  for name in $SHELLOPTS; do
    [[ $2 == *":$name:"* ]] || __sandbox_set+="\\builtin set +o $name;"
  done
  for name in $2; do
    [[ ! $name || :$SHELLOPTS: == *":$name:"* ]] || __sandbox_set+="\\builtin set -o $name;"
  done
}
__sandbox_check() {
  # Called if the state was not loaded completely, its folder cannot be entered, or the call has a
  # folder of its own.
  if [[ $__sandbox_loaded == functions ]]; then
    builtin printf 'sandbox: not all functions of earlier commands could be loaded\n' >&2
  elif [[ $__sandbox_loaded != all ]]; then
    builtin exit 1
  fi
  if [[ $__sandbox_call ]]; then
    builtin cd -- "$__sandbox_call" 2>/dev/null || [[ . -ef $__sandbox_call ]] || {
      builtin printf '#cwd\n' >&202
      builtin exit 126
    }
  elif [[ $__sandbox_lost ]]; then
    if builtin cd /workspace 2>/dev/null || [[ . -ef /workspace ]]; then
      __sandbox_go=/workspace
    else
      __sandbox_go=/
      builtin cd / 2>/dev/null
    fi
    [[ -d $__sandbox_lost ]] && __sandbox_lost+=' cannot be entered' || __sandbox_lost+=' is gone'
    builtin printf 'sandbox: %s, starting in %s\n' "$__sandbox_lost" "$__sandbox_go" >&2
  fi
}
__sandbox_begin() {
  builtin unset -f __sandbox_wait __sandbox_load __sandbox_options __sandbox_check
  builtin eval "${__sandbox_call[1]}"
  __sandbox_command=$__sandbox_set${__sandbox_call[2]}
  __sandbox_same=
  builtin trap "$__sandbox_leaving" EXIT
  [[ $__sandbox_aliases ]] || builtin shopt -s expand_aliases
  # A shell with unusual options does not go on: our own statements would show in a trace.
  [[ ${__sandbox_call[3]} && ! $__sandbox_set && ! $__sandbox_aliases ]] &&
    __sandbox_run='builtin eval "$__sandbox_step"; { __sandbox_end; } >/dev/null 2>&1' ||
    __sandbox_run=$__sandbox_command
  builtin printf '#begun\n' >&202
}
__sandbox_step='STEP'
__sandbox_leaving='{ __sandbox_save "$?" "$BASHOPTS" "$SHELLOPTS" "${POSIXLY_CORRECT+${POSIXLY_CORRECT@A}}" || [[ 1 ]]; } >/dev/null 2>&1'
# In a terminal bash has the options of whoever types; those of the commands come and go.
[[ $- != *i* ]] || __sandbox_leaving=${__sandbox_leaving/'"$BASHOPTS" "$SHELLOPTS" "${POSIXLY_CORRECT+${POSIXLY_CORRECT@A}}"'/'"${__sandbox_came[@]}"'}
__sandbox_save() {
  # The exit code, which it returns, `shopt` and `set` options, and what turns POSIX mode on.
  # In POSIX mode special builtins take precedence over functions, so `unset` here is bash's own.
  POSIXLY_CORRECT=y
  unset -f builtin && unset -v POSIXLY_CORRECT || return "$1"
  builtin trap - DEBUG ERR RETURN
  builtin trap '' XFSZ
  __sandbox_call= __sandbox_command= __sandbox_run=
  # A POSIXLY_CORRECT set by the call itself must not turn POSIX mode on for later commands.
  [[ ! $4 || ${__sandbox_restore-} != *'unset -v POSIXLY_CORRECT'* ]] ||
    builtin set -- "$1" "$2" "$3" ''
  # The current folder, whatever PWD says: by the name it was entered with, if still valid.
  if [[ ${DIRSTACK[0]-} == /* && . -ef ${DIRSTACK[0]} ]]; then
    builtin set -- "$@" "${DIRSTACK[0]}"
  else
    builtin set -- "$@" "$(\builtin pwd -P || \builtin printf %s "${PWD-}")"
  fi
  {
    builtin printf '#KEY %s\n__sandbox_load %q %q %q\n' "${5//$'\n'/?}" "$5" "${2:+$2 $3}" "$4" &&
      builtin umask -p &&
      builtin declare -p &&
      builtin printf '%s\n' "${__sandbox_restore-}" &&
      builtin alias -p &&
      builtin printf '__sandbox_loaded=functions\n' &&
      builtin declare -f &&
      builtin declare -Fx &&
      builtin printf '__sandbox_loaded=all\n#end KEY\n'
  } >&202
  builtin return "$1"
}
__sandbox_next() {
  # After a command: save the state if it may have changed, tell that the command has ended, and wait
  # for the next. Fails if there is none, or if the shell is not as every new one is.
  __sandbox_call=() __sandbox_command= __sandbox_run= __sandbox_restore=
  [[ $BASHOPTS\ $SHELLOPTS == "$__sandbox_usual" && ${DIRSTACK[0]-} == /* ]] || builtin return
  [[ . -ef ${DIRSTACK[0]} && -x . ]] || builtin return
  if [[ $__sandbox_same ]]; then
    builtin printf '#same KEY\n' >&202 || builtin return
  else
    # Functions are printed only if there are others than our five: that takes as long as all the
    # rest. They are counted through the file of the call, which has been read.
    builtin declare -F >/dev/fd/204 && builtin mapfile -t __sandbox_call </dev/fd/204 ||
      builtin return
    __sandbox_go=${#__sandbox_call[@]} __sandbox_call=()
    {
      builtin printf '#KEY %s\n__sandbox_load %q %q %q\n' "${DIRSTACK[0]//$'\n'/?}" \
          "${DIRSTACK[0]}" "$__sandbox_usual" '' &&
        builtin umask -p &&
        builtin declare -p &&
        builtin alias -p &&
        builtin printf '__sandbox_loaded=functions\n' &&
        { [[ $__sandbox_go == 5 ]] || builtin declare -f; } &&
        builtin declare -Fx &&
        builtin printf '__sandbox_loaded=all\n#end KEY\n'
    } >&202 || builtin return
  fi
  builtin printf '%s\n' "$__sandbox_status" >&205 || builtin return
  builtin trap - XFSZ
  builtin read -rN1 -u203 __sandbox_go && builtin mapfile -d '' -u204 __sandbox_call &&
    [[ ${#__sandbox_call[@]} == 5 && . -ef ${DIRSTACK[0]} && -x . ]] || builtin return
  [[ ! $__sandbox_call ]] || builtin cd -- "$__sandbox_call" || builtin return
  builtin hash -r
  builtin dirs -c
  builtin eval "${__sandbox_call[1]}"
  __sandbox_command=${__sandbox_call[2]}
  __sandbox_same=${__sandbox_call[4]}
  builtin printf '#begun\n' >&202
}
__sandbox_end() { builtin return "$__sandbox_status"; }
trap() {
  # Run the user's EXIT trap after saving the state, not instead of it.
  if [[ $BASH_SUBSHELL != 0 || ($* != *[Ee][Xx][Ii][Tt]* && $* != *0*) ]]; then
    builtin trap "$@" # Last, since a DEBUG trap would see anything after it.
  else
    builtin trap "$@" || builtin return
    builtin set -- "$(\builtin trap -p EXIT)"
    [[ $1 != *__sandbox_save* ]] || builtin return 0
    builtin eval "\\builtin set -- $1"
    if [[ ${3-} ]]; then
      # In both branches, so that it sees the exit code in $? and `set -e` cannot skip it.
      builtin set -- "if ${__sandbox_leaving/ || \[\[ 1 \]\]/}; then
$3
else
$3
fi"
    else
      builtin set -- "$__sandbox_leaving"
    fi
    builtin trap -- "$1" EXIT
  fi
}
readonly -f trap __sandbox_begin __sandbox_save __sandbox_next __sandbox_end
readonly __sandbox_usual __sandbox_leaving __sandbox_step
echo 1000 2>/dev/null >/proc/self/oom_score_adj
