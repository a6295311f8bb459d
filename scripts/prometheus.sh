#!/usr/bin/env bash
# Gets Prometheus and promtool for the tests: prints the folder that has both.
# Those in PATH are taken; else Debian's package is unpacked into build/tools/prometheus. It is not installed and needs no root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/build/tools/prometheus

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  dirname "$(command -v prometheus)"
  exit
fi
if [ ! -x "$tools/usr/bin/prometheus" ]; then
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || { echo "prometheus.sh: no prometheus in PATH, and no apt-get to get it with" >&2; exit 1; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work" # apt's own user writes there
  (cd "$work" && { apt-get download prometheus >&2 || { apt-get update >&2 && apt-get download prometheus >&2; }; })
  mkdir -p "$tools"
  dpkg -x "$work"/prometheus_*.deb "$tools"
fi
echo "$tools/usr/bin"
