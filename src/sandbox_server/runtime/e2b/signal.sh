# Signals the processes of a command: those below its launcher, those with its id in their
# environment, and what descends from them. Arguments: id, number. 9 is repeated until none is left.
# Prints how many there were.
id=$1 number=$2 record=$HOME/.sandbox/commands/$1

launcher=
# What its parent leaves behind becomes a child of the launcher (subreaper.py), while that lives.
{ read -r launcher mark _; } 2>/dev/null <"$record"
grep -qszx -- "$mark" "/proc/$launcher/cmdline" || launcher=

find_them() {
  local file line rest parents=() pids=() added=yes index
  them=()
  for file in $(grep -lzxs -- "SANDBOX_COMMAND_ID=$id" /proc/[0-9]*/environ 2>/dev/null); do
    file=${file#/proc/}
    them[${file%/environ}]=1
  done
  [[ ! $launcher ]] || them[launcher]=1
  for file in /proc/[0-9]*/stat; do
    { read -r line <"$file"; } 2>/dev/null || continue
    rest=${line##*) }
    [[ $rest == Z* ]] && continue
    rest=${rest#* }
    pids+=("${line%% *}") parents+=("${rest%% *}")
  done
  while [[ $added ]]; do
    added=
    for index in "${!pids[@]}"; do
      if [[ ${them[${parents[index]}]} && ! ${them[${pids[index]}]} ]]; then
        them[${pids[index]}]=1 added=yes
      fi
    done
  done
  [[ ! $launcher ]] || unset -v "them[launcher]"
}

count=0
for ((round = 0; round < 60; round++)); do
  find_them
  count=$((count > ${#them[@]} ? count : ${#them[@]}))
  if ((${#them[@]})); then
    kill "-$number" "${!them[@]}" 2>/dev/null
    ((number == 9)) || break
  elif ((count)) || grep -qs '^exit' "$record" || ((round > 40)); then
    break
  fi
  sleep 0.05 # It may be about to begin, or about to be dead.
done
echo "$count"
