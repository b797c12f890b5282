# Runs one command with the state that the last one left (prelude.sh of the warden loads and saves
# it). Arguments: id, mark, digest of the call, digest of its key, - without one, + for a
# command of the server, `pipe` if it has input, and
# the call: folder, lines, command; without those three it is in run/ID.call.
#
# Lines that begin with the mark are for the server: one before the output of the command, and one on
# each stream after it. Its first byte is in no argument, so that `ps` of a command shows none.
dir=$HOME/.sandbox id=$1 mark=$2 digest=$3 key=$4 input=$5 folder=$6
call=$dir/run/$id.call save=$dir/run/$id.save record=$dir/commands/$id error=$dir/run/$id.error

tell() { printf '\036sandbox-%s:%s\n' "$mark" "$*"; }
refuse() {
  tell "$@"
  rm -f -- "$call"
  exit 0
}
once() { # Makes a file that must not be there yet.
  set -C
  { printf '%s\n' "$2" >"$1"; } 2>/dev/null
  local made=$?
  set +C
  return "$made"
}
save_state() {
  local first='' last line size
  IFS= read -rN7 first <"$save"
  last=$(tail -n 1 -- "$save" | tr -d '\0')
  size=$(wc -c <"$save")
  state_key=$(<"$dir/key")
  if [[ $first == $'#begun\n' && $last == "#end $state_key" ]] && ((size <= 4194304)); then
    line=$(grep -an "^#$state_key " -- "$save" | tail -n 1)
    tail -n "+${line%%:*}" -- "$save" | sed -E -f "$dir/filter" >"$dir/run/$id.state" &&
      mv -f -- "$dir/run/$id.state" "$dir/state" && saved=yes cwd=${line#*"#$state_key "}
  elif [[ $first != $'#begun\n' ]] && ((SECONDS > 5)); then
    cp -- "$dir/fresh" "$dir/state"
    complain 'the state of earlier commands could not be loaded; variables, functions and options are reset, and the folder is /workspace'
  elif ((size > 4194304)); then
    unsaved 'they take more than the limit of 4194304 bytes'
  elif ((size > 7 && code <= 128)); then
    unsaved 'they could not all be written'
  fi
}
complain() { printf 'sandbox: %s\n' "$1" >&9; }
unsaved() {
  complain "the variables, functions and folder of this command are not kept: $1. The next command starts with the previous ones."
}

[[ ! $folder || -d $folder ]] || { [[ -e $folder ]] && refuse not_a_folder || refuse missing; }
[[ ! $folder || -x $folder ]] || refuse denied
[[ $key == [-+] ]] || once "$dir/keys/$key" "$id $digest" || refuse joined "$(<"$dir/keys/$key")"
once "$record" "$$ $mark $digest $key ${EPOCHREALTIME/,/.}" || refuse again
(($# < 8)) || printf '%s\0' "$6" "$7" "$8" '' >"$call"
[[ $input == pipe ]] || exec </dev/null
cd /workspace || cd /
# The shell itself tells that it has begun, with its pid.
script="builtin printf '\\036sandbox-%s:begun %s\n' $mark \"\$\$\"; $(<"$dir/script")"
# bash tells there how a command was killed, which its exit code alone does not.
exec 9>&2 2>"$error"
SECONDS=0
SANDBOX_COMMAND_ID=$id BASH_ENV=/dev/fd/200 bash -c "$script" 2>&9 9>&- \
  200<"$dir/prelude" 201<"$dir/state" 202>"$save" 203<<<g 204<"$call" 205>/dev/null
code=$? saved=no cwd= killed=no
[[ ! -s $error ]] || killed=yes
exec 2>/dev/null
export LC_ALL=C
save_state
times >"$dir/run/$id.times"
{ read -r && read -r user system; } <"$dir/run/$id.times"
printf 'exit %s\n' "$code" >>"$record"
rm -f -- "$call" "$save" "$error" "$dir/run/$id.times"
tell ended "$code" "$saved" "$killed" "$user" "$system" "$cwd"
tell >&9
