/*
 * emit.c: what a machine says, on its way out.   hr_emit ──► pieces ──► hr_side_send ──► unsent
 *
 * Pieces point into what was read, into static text or into the scratch: nothing is copied unless
 * the socket does not take it.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

void hr_emit(hr_session *session, hr_end to, const void *bytes, size_t length)
{
    hr_pieces *out = &session->thread->engine->out[to];
    struct iovec *last;

    if (length == 0)
        return;
    if (out->count > 0) {
        last = &out->piece[out->count - 1];
        if ((const uint8_t *) last->iov_base + last->iov_len == bytes) {
            last->iov_len += length;
            out->bytes += length;
            return;
        }
        if (out->count == HR_PIECES)
            hr_spill(session, to, 0);
    }
    last = &out->piece[out->count++];
    last->iov_base = (void *) (uintptr_t) bytes;
    last->iov_len = length;
    out->bytes += length;
}

/* More scratch than is there: from the pool, until what was emitted is sent. Without a buffer the
 * session ends, and nothing of what it writes here is sent: so it may be written over. */
static void *more_scratch(hr_session *session, size_t length)
{
    hr_engine *engine = session->thread->engine;
    hr_buffer *more = engine->scratch_more;

    if (more == NULL || more->size - more->end < length) {
        more = hr_buffer_get(session->thread, HR_BUFFER_BYTES);
        if (more == NULL) {
            engine->out_of_buffers = true;
            return engine->scratch;
        }
        more->next = engine->scratch_more;
        engine->scratch_more = more;
    }
    more->end += (uint32_t) length;
    return more->bytes + more->end - length;
}

void *hr_scratch(hr_session *session, size_t length)
{
    hr_engine *engine = session->thread->engine;
    size_t whole = (length + 15u) & ~(size_t) 15u;
    void *scratch;

    if (engine->scratch_used + whole > HR_SCRATCH_BYTES)
        return more_scratch(session, whole);
    scratch = engine->scratch + engine->scratch_used;
    engine->scratch_used += whole;
    return scratch;
}

static void free_scratch(hr_thread *thread)
{
    hr_engine *engine = thread->engine;
    hr_buffer *more;

    engine->scratch_used = 0;
    while ((more = engine->scratch_more) != NULL) {
        engine->scratch_more = more->next;
        hr_buffer_put(thread, more);
    }
}

void hr_forget_pieces(hr_session *session, hr_end end)
{
    hr_pieces *out = &session->thread->engine->out[end];

    out->count = 0;
    out->bytes = 0;
}

/* Room behind what is unsent: in the last buffer, or in a new one that has all of `wanted` in one. */
static hr_buffer *unsent_room(hr_session *session, hr_side *side, size_t wanted)
{
    hr_buffer *last = side->unsent_last;

    if (last != NULL && last->end < last->size)
        return last;
    last = hr_buffer_get(session->thread, wanted < HR_BUFFER_BYTES ? wanted : HR_BUFFER_BYTES);
    if (last == NULL)
        return NULL;
    if (side->unsent_last != NULL)
        side->unsent_last->next = last;
    else
        side->unsent = last;
    side->unsent_last = last;
    return last;
}

static bool copy_unsent(hr_session *session, hr_side *side, const uint8_t *bytes, size_t length,
                        size_t wanted)
{
    while (length > 0) {
        hr_buffer *last = unsent_room(session, side, wanted);
        size_t some;

        if (last == NULL)
            return false;
        some = last->size - last->end;
        some = some < length ? some : length;
        memcpy(last->bytes + last->end, bytes, some);
        last->end += (uint32_t) some;
        side->unsent_bytes += some;
        bytes += some;
        length -= some;
        wanted -= some;
    }
    return true;
}

bool hr_spill(hr_session *session, hr_end end, size_t sent)
{
    hr_pieces *out = &session->thread->engine->out[end];
    hr_side *side = &session->side[end];
    size_t wanted = out->bytes - sent;
    uint32_t i;

    for (i = 0; i < out->count; i++) {
        size_t length = out->piece[i].iov_len;

        if (sent >= length) {
            sent -= length;
            continue;
        }
        length -= sent;
        if (!copy_unsent(session, side, (uint8_t *) out->piece[i].iov_base + sent, length,
                         wanted)) {
            session->thread->engine->out_of_buffers = true;
            break;
        }
        wanted -= length;
        sent = 0;
    }
    hr_forget_pieces(session, end);
    return !session->thread->engine->out_of_buffers;
}

void hr_unsent_sent(hr_session *session, hr_end end, size_t bytes)
{
    hr_side *side = &session->side[end];

    side->unsent_bytes -= bytes;
    while (bytes > 0) {
        hr_buffer *first = side->unsent;
        size_t some = first->end - first->start;

        some = some < bytes ? some : bytes;
        first->start += (uint32_t) some;
        bytes -= some;
        if (first->start < first->end)
            break;
        side->unsent = first->next;
        if (side->unsent == NULL)
            side->unsent_last = NULL;
        hr_buffer_put(session->thread, first);
    }
}

void hr_drop_unsent(hr_session *session, hr_end end)
{
    hr_unsent_sent(session, end, session->side[end].unsent_bytes);
}

uint32_t hr_unsent_pieces(const hr_side *side, struct iovec *pieces, uint32_t most, size_t *bytes)
{
    hr_buffer *buffer;
    uint32_t count = 0;

    *bytes = 0;
    for (buffer = side->unsent; buffer != NULL && count < most; buffer = buffer->next) {
        pieces[count].iov_base = buffer->bytes + buffer->start;
        pieces[count].iov_len = buffer->end - buffer->start;
        *bytes += pieces[count++].iov_len;
    }
    return count;
}

static void flush_end(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    if (session->thread->engine->out[end].count == 0)
        return;
    if (side->fd < 0 || side->failed || side->shaking) {
        /* To a server that is not there yet: it is sent as soon as it is. Else nobody can take it. */
        if (end == HR_SERVER && side->fd < 0 && !side->failed && !session->closing)
            hr_spill(session, end, 0);
        else
            hr_forget_pieces(session, end);
        return;
    }
    if (side->connecting)
        hr_spill(session, end, 0);
    else
        hr_side_send(session, end);
}

void hr_flush(hr_session *session)
{
    flush_end(session, HR_SERVER);
    flush_end(session, HR_CLIENT);
    if (session->thread->engine->scratch_used > 0)
        free_scratch(session->thread);
}
