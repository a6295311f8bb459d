#!/usr/bin/env bash
# Runs every Go fuzz test of the repository for a while: scripts/fuzz.sh 30s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
duration=${1:-10s}
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
  package=$(dirname "$file")
  grep -oE '^func (Fuzz[A-Za-z0-9_]+)' "$file" | awk '{print $2}' | while read -r name; do
    echo "fuzz $package $name for $duration"
    go test -run '^$' -fuzz "^$name\$" -fuzztime "$duration" "$package" </dev/null
  done
done
