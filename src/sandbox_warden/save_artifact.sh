#!/bin/sh
# Marks files to be kept after the end of the session. The warden reads the marks of a command when
# it has ended.
if [ $# -eq 0 ]; then
  echo 'usage: save_artifact FILE...' >&2
  exit 2
fi
status=0
for file; do
  case $file in
  /*) ;;
  *) file=$PWD/$file ;;
  esac
  if [ ! -f "$file" ]; then
    echo "save_artifact: $file is not a file; pack a folder with tar first" >&2
    status=1
  elif ! printf '%s\0' "$file" >>"/tmp/.artifacts-$SANDBOX_COMMAND_ID"; then
    status=1
  fi
done
exit $status
