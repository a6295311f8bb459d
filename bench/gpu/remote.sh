#!/bin/sh
# Carries the programs and the checks to a machine with a GPU and PyTorch, runs them
# there, and brings the findings back:
#
#   bench/gpu/remote.sh [-p PYTHON] HOST [OPTION of check.py ...]
#
# The findings come to build/gpu-findings.json. Exit code 0: everything is as it
# should be; 1: something is not; 2: it was called in a wrong way.
set -eu
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
python=python3
case ${1-} in --help | -h) usage; exit 0 ;; esac
while getopts p: option; do
  case $option in
  p) python=$OPTARG ;;
  *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || { usage >&2; exit 2; }
host=$1
shift
cd "$(dirname "$0")/../.."
make build
mkdir -p build
there=$(ssh "$host" mktemp -d)
trap 'ssh "$host" rm -rf "$there"' EXIT
tar -cz bin/mooncake-lookupd bin/mooncake-worker bench/gpu pyshim/mooncake_sidecar | ssh "$host" tar -xz -C "$there"
status=0
ssh "$host" "cd '$there' && { $python -c 'import msgspec' 2>/dev/null || $python -m pip install --quiet msgspec; } &&
  $python bench/gpu/check.py --json findings.json $*" || status=$?
scp -q "$host:$there/findings.json" build/gpu-findings.json && echo "build/gpu-findings.json"
exit $status
