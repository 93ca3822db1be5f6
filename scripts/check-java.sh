#!/bin/sh
# Succeeds when Spark will find Java 17 or newer, else says what to install.
# Looks where Spark looks: JAVA_HOME first, then the PATH.
set -u

NEEDED=17

complain() {
    echo "Spark needs Java $NEEDED or newer: $1" >&2
    echo "Install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless;" >&2
    echo "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17)" >&2
    echo "or set JAVA_HOME to one that is installed." >&2
    exit 1
}

if [ -n "${JAVA_HOME:-}" ]; then
    java="$JAVA_HOME/bin/java"
    [ -x "$java" ] || complain "JAVA_HOME is $JAVA_HOME, and there is no bin/java in it."
else
    java=$(command -v java) || complain "there is no java on the PATH and JAVA_HOME is not set."
fi

text=$("$java" -version 2>&1) || complain "$java does not run: $text"
# 'openjdk version "17.0.15" 2025-04-15', and '"1.8.0_392"' before Java 9.
major=$(printf '%s\n' "$text" | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1)
[ -n "$major" ] || complain "$java does not tell its version: $text"
[ "$major" -ge "$NEEDED" ] || complain "$java is Java $major."
