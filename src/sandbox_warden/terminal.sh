# Follows prelude.sh where somebody types: an interactive bash with the state of the last command,
# which leaves its own to the next one. Options of bash are the typist's: those of the commands are
# neither taken over nor changed.
__sandbox_load() {
  exec 201<&-
  [[ $PWD == "$1" && . -ef $1 ]] || cd -- "$1" || [[ . -ef $1 ]] || __sandbox_lost=$1
  __sandbox_came=("${2% *}" "${2#* }" "$3")
}
__sandbox_wait
. /dev/fd/201 2>/dev/null
[[ $__sandbox_loaded$__sandbox_lost$__sandbox_call == all ]] || __sandbox_check
__sandbox_begin
__sandbox_restore+='unset -v COLUMNS LINES PS1 PS2 HISTFILE HISTFILESIZE HISTSIZE'$'\n'
builtin unset -v HISTFILE __sandbox_run __sandbox_command
PS1='\[\e[32m\]\u\[\e[0m\]:\[\e[34m\]\w\[\e[0m\]\$ '
