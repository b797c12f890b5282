# Tells what a download is going to be: type, size, mode, time of change, the sha256 of a file if the
# second argument is `digest`, and the real path, to the end. Argument: path.
path=$(realpath -e -- "$1" 2>/dev/null && echo .) || {
  [[ -e $1 || -L $1 ]] && echo denied || echo missing
  exit 0
}
path=${path%$'\n.'} # A name may end with line breaks, which $() drops.
digest=-
if [[ -f $path && $2 == digest ]]; then
  digest=$(sha256sum <"$path" 2>/dev/null) || {
    echo denied
    exit 0
  }
fi
stat -c '%F
%s
%04a
%.9Y' -- "$path" || exit 0
printf '%s\n%s' "${digest%% *}" "$path"
