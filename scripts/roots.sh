# shellcheck shell=bash
# Minimal Debian roots, for scripts/fresh and scripts/release --try. Source it after lib.sh.
#
# Sets: WORK (where roots are), mirror. Reads: keep (do not remove a root at the end).

# need_roots MEGABYTES
need_roots() {
  is_root || fail "${SELF##*/} needs root, to make a root file system" "Run: sudo $0"
  command -v debootstrap >/dev/null || need_packages "${SELF##*/} needs debootstrap" debootstrap
  need_disk "$1" "${SELF##*/}"
  mirror="$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "Debian" { print $1; exit }')"
  [[ -n "$mirror" ]] || fail "this machine's apt knows no Debian mirror" "Add one to its sources, run apt-get update, and try again"
  WORK="$CACHE/fresh"
  mkdir -p "$WORK" "$CACHE/logs"
  trap end EXIT
}

# What a machine of this network has: name service, certificates and settings of pip and apt.
furnish() {
  local root="$1" name
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  for name in /etc/pip.conf /etc/apt/apt.conf.d /etc/ssl/certs/ca-certificates.crt; do
    [[ ! -e "$name" ]] || { mkdir -p "$root${name%/*}" && cp -rL "$name" "$root${name%/*}/"; }
  done
  # Indexes in folders of this machine are not there.
  [[ ! -f "$root/etc/pip.conf" ]] || sed -i '/^\(find-links\|extra-index-url\) *=.*\(file:\|= *\/\)/d' "$root/etc/pip.conf"
}

# bare_root ROOT SUITE PACKAGE,…
bare_root() {
  rm -rf "$1"
  debootstrap --variant=minbase --include="$3" "$2" "$1" "$mirror" && furnish "$1"
}

# root_apt ROOT PACKAGE…
root_apt() {
  local root="$1"
  shift
  chroot "$root" sh -c 'apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"' - "$@"
}

# A mount and process namespace of its own: whatever happens, nothing stays mounted or running.
# Runs in a shell of its own (try).
#   inside ROOT USER COMMAND
inside() {
  local root="$1" user="$2" home variables=()
  home="$([[ "$user" == root ]] && echo /root || echo "/home/$user")"
  for name in http_proxy https_proxy no_proxy PIP_INDEX_URL PIP_CERT; do
    [[ -z "${!name:-}" ]] || variables+=("$name=${!name}")
  done
  exec unshare --mount --pid --ipc --fork --kill-child bash -euc '
    root="$1" user="$2" home="$3" command="$4"
    shift 4
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    for name in null zero full random urandom tty; do
      touch "$root/dev/$name" && mount --bind "/dev/$name" "$root/dev/$name"
    done
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%%:*}" "$root/dev/${n##*:}"; done
    exec chroot --userspec="$user:" "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      HOME="$home" "$@" sh -c "cd ~/headgate && $command"
  ' - "$root" "$user" "$home" "$3" "${variables[@]}" </dev/null
}

# try NAME LOG COMMAND…: shows that it goes on; keeps the time it took (took), and when the first
# line that begins with $awaited was there (seen_after).
try() {
  local name="$1" log="$2" began=$SECONDS failed=0 pid shown=0
  shift 2
  seen_after=""
  say "$name (log: ${log#"$ROOT/"})"
  "$@" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1 &
    wait -n "$pid" $! 2>/dev/null || true
    [[ -n "$seen_after" || -z "${awaited:-}" ]] || ! grep -aq "^$awaited" "$log" || seen_after=$((SECONDS - began))
    ((SECONDS - began >= shown + 10)) || continue
    shown=$((SECONDS - began))
    printf '    %4d s  %s\n' "$shown" "$(tail -c 300 "$log" | tr '\r' '\n' | grep -av '^$' | tail -n 1 | cut -c1-110)" >&2
  done
  wait "$pid" || failed=$?
  took=$((SECONDS - began))
  ((failed == 0)) || tail -n 40 "$log" >&2
  say "$name: $([[ $failed == 0 ]] && echo ok || echo "FAILED ($failed)") after $took s"
  return "$failed"
}

end() {
  # shellcheck disable=SC2046 # One word for each job.
  kill $(jobs -p) 2>/dev/null || true
  [[ -z "${keep:-}" && -n "${root:-}" && -d "$root" ]] || return 0
  umount -l "$root/proc" 2>/dev/null || true # Of a debootstrap that was cut short.
  rm -rf --one-file-system "$root"
}

# record MARK KEYS ROWS: into the table of docs/testing.md between <!-- MARK --> and <!-- /MARK -->.
# A row takes the place of the one with the same first KEYS columns; what was not tried now stays.
record() {
  "$(find_python)" - "$1" "$2" "$3" docs/testing.md <<'PYTHON'
import re
import sys
from pathlib import Path

mark, keys, results, page = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_text(), Path(sys.argv[4])
marked = re.compile(rf"(?s)(<!-- {mark} -->\n)(.*?)(<!-- /{mark} -->)")
head, ruler, *known = marked.search(page.read_text())[2].splitlines()
rows = {tuple(row.split("|")[1 : keys + 1]): row for row in (*known, *results.splitlines())}
table = "\n".join([head, ruler, *(rows[key] for key in sorted(rows)), ""])
page.write_text(marked.sub(lambda found: found[1] + table + found[3], page.read_text()))
PYTHON
  say "docs/testing.md has the result"
}
