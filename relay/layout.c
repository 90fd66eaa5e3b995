/*
 * layout.c: sizes and offsets of what Python reads and writes, by number, for ctypes to compare with
 * its own: a struct that is laid out otherwise is found at the start, not by what it does.
 */
#include "relay.h"

#define FIELD(type, field) offsetof(type, field)

/* In the order of src/headgate/proxy/layout.py. */
size_t hr_layout(uint32_t which)
{
    static const size_t all[] = {
        sizeof(hr_settings),
        sizeof(hg_identity),
        sizeof(hr_tls_settings),
        sizeof(hr_target),
        sizeof(hr_targets),
        sizeof(hr_gate),
        sizeof(hr_client),
        sizeof(hr_release),
        sizeof(hr_running),
        sizeof(hr_sizes),
        sizeof(hr_plan),
        sizeof(hr_state),
        sizeof(hr_thread_counts),
        sizeof(hr_event),
        sizeof(hr_session_view),
        FIELD(hr_settings, dry_run),
        FIELD(hr_settings, max_buffer_bytes),
        FIELD(hr_settings, max_logins_per_address),
        FIELD(hr_tls_settings, name),
        FIELD(hr_target, address),
        FIELD(hr_target, name),
        FIELD(hr_targets, target),
        FIELD(hr_targets, tls),
        FIELD(hr_gate, action),
        FIELD(hr_gate, until_ms),
        FIELD(hr_gate, reason),
        FIELD(hr_client, identity),
        FIELD(hr_client, last_ns),
        FIELD(hr_client, blocked),
        FIELD(hr_client, reported_admitted),
        FIELD(hr_client, waiting),
        FIELD(hr_client, gate),
        FIELD(hr_release, action),
        FIELD(hr_running, holding),
        FIELD(hr_state, sizes),
        FIELD(hr_state, clients_at),
        FIELD(hr_state, lost),
        FIELD(hr_state, release),
        FIELD(hr_thread_counts, statements),
        FIELD(hr_thread_counts, untrusted_tags),
        FIELD(hr_event, by),
        FIELD(hr_event, text),
        FIELD(hr_session_view, address),
        FIELD(hr_session_view, username),
        FIELD(hr_session_view, client),
    };

    return which < sizeof all / sizeof *all ? all[which] : 0;
}
