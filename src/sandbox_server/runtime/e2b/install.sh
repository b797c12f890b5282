# Prepares a new sandbox. Arguments: the key that marks states, then names and contents of files.
umask 077
dir=$HOME/.sandbox
mkdir -p "$dir/commands" "$dir/keys" "$dir/run" || exit 1
printf '%s' "$1" >"$dir/key"
shift
while (($# > 1)); do
  printf '%s' "$2" >"$dir/$1" || exit 1
  shift 2
done
cp "$dir/fresh" "$dir/state" || exit 1
umask 022
[[ -d /workspace && -w /workspace ]] || mkdir -p /workspace 2>/dev/null ||
  sudo -n install -d -o "$(id -u)" -g "$(id -g)" /workspace || {
  echo "its user cannot make /workspace: make it in the template" >&2
  exit 1
}
