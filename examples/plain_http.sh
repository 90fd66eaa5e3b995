#!/bin/sh
# Check before each piece of work, with nothing but curl.
#
#   HEADGATE_URL=http://127.0.0.1:8087 examples/plain_http.sh APP DATABASE COMMAND [ARGUMENT...]
#
# Runs COMMAND once for each line of standard input, which it gets as its last argument.
# Only status 200 admits. A rejection says in Retry-After when to retry. When no agent
# answers for UNAVAILABLE_AFTER seconds, the work stops.
set -eu

url=${HEADGATE_URL:-http://127.0.0.1:8087}
unavailable_after=${UNAVAILABLE_AFTER:-10}
app=$1 database=$2
shift 2

# Prints "status retry-after"; the status is 000 when no agent answered.
check() {
    curl --silent --output /dev/null --max-time 1 --get \
        --data-urlencode "app=$app" --data-urlencode "database=$database" \
        --write-out '%{http_code} %header{retry-after}' "$url/v1/check" || true
}

wait_until_admitted() {
    silent=0
    while :; do
        answer=$(check)
        status=${answer%% *} retry_after=${answer#* }
        case $status in
            200) return ;;
            400 | 401 | 403) echo "$app: the agent does not accept the request: $status" >&2; exit 2 ;;
            404 | 417 | 421 | 424 | 429) silent=0 ;;
            *) silent=$((silent + 1)) ;;
        esac
        if [ "$silent" -ge "$unavailable_after" ]; then
            echo "$app: no agent answered at $url for $silent checks" >&2
            exit 3
        fi
        sleep "${retry_after:-1}"
    done
}

while IFS= read -r item; do
    wait_until_admitted
    "$@" "$item" </dev/null
done
