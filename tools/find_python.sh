#!/usr/bin/env bash
# Prints the path of a Python 3.11-3.13 interpreter; says what is missing where there is none.
#
# $PYTHON, when set, is the only one tried: whoever names an interpreter means that one.
set -u
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
  path=$("$name" -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); print(sys.executable if ok else "")' 2>/dev/null) || continue
  if [ -n "$path" ]; then
    echo "$path"
    exit 0
  fi
done
found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no ${PYTHON:-python3}")
echo "tiered-kafka needs Python 3.11, 3.12 or 3.13 on PATH (found: $found). Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
