# Lists the files below /workspace that were made or changed since a command began, or in the last
# seconds. Arguments: id or -, seconds. For each: size, mode, time of change, owner, group, path.
since=$2
if [[ $1 != - ]]; then
  { read -r _ _ _ _ since; } <"$HOME/.sandbox/commands/$1" || exit 1
  micros=$((${since/./} - 20000)) # The clock of files is up to a tick behind.
  since=${micros::-6}.${micros: -6}
else
  since=$(($(date +%s) - ${since%.*}))
fi
cd /workspace || exit 1
find . -mindepth 1 \( -name '.*' -o -type d \( -name node_modules -o -name __pycache__ \
  -o -name site-packages -o -name venv \) \) -prune \
  -o -type f -newermt "@$since" -printf '%s %#m %T@ %u %g %P\0'
