/* records.c: many small pieces in few TLS records, and back; for the loop. */
#include "engine.h"

#include <string.h>

ssize_t hr_record_send(hr_side *side, const void *bytes, size_t length)
{
    ssize_t sent = hr_tls_write(side->tls, bytes, length);

    if (sent == HR_TLS_READ || sent == HR_TLS_WRITE)
        return 0;
    return sent > 0 ? sent : -1;
}

/* Small pieces share a record: `record` holds the copy; a large piece is taken where it lies. */
static const void *next_record(const hr_pieces *out, size_t skip, uint8_t *record, size_t *length)
{
    size_t filled = 0;
    uint32_t i;

    for (i = 0; i < out->count && filled < HR_RECORD_BYTES; i++) {
        const uint8_t *bytes = out->piece[i].iov_base;
        size_t some = out->piece[i].iov_len;

        if (skip >= some) {
            skip -= some;
            continue;
        }
        bytes += skip;
        some -= skip;
        skip = 0;
        if (filled == 0 && (some >= HR_RECORD_BYTES || i + 1 == out->count)) {
            *length = some < HR_RECORD_BYTES ? some : HR_RECORD_BYTES;
            return bytes;
        }
        some = some < HR_RECORD_BYTES - filled ? some : HR_RECORD_BYTES - filled;
        memcpy(record + filled, bytes, some);
        filled += some;
    }
    *length = filled;
    return record;
}

ssize_t hr_records_send(hr_session *session, hr_end end)
{
    const hr_pieces *out = &session->thread->engine->out[end];
    size_t sent = 0;

    while (sent < out->bytes) {
        size_t length;
        const void *bytes = next_record(out, sent, session->thread->engine->record, &length);
        ssize_t some = hr_record_send(&session->side[end], bytes, length);

        if (some < 0)
            return -1;
        if (some == 0)
            break;
        sent += (size_t) some;
    }
    return (ssize_t) sent;
}

/* A read gives one record at most. */
ssize_t hr_records_read(hr_side *side, uint8_t *room, size_t most)
{
    ssize_t came, all = 0;

    hr_tls_readable(side->tls);
    do {
        came = hr_tls_read(side->tls, room + all, most - (size_t) all);
        all += came > 0 ? came : 0;
    } while (came > 0 && (size_t) all < most);
    side->readable = came != HR_TLS_READ || (all > 0 && side->hung_up);
    return all > 0 ? all : came;
}
