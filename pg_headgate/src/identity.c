/*
 * identity.c: who the client is. What the server itself knows of the session, not what a client says.
 *
 * `username` is session_user: the user that logged in, and after SET SESSION AUTHORIZATION, which only a
 * superuser may do, the user that it took over. Not current_user: by SET ROLE a client could choose among
 * the budgets of all the roles that it is a member of, statement by statement.
 */
#include "pg_headgate.h"

#include <netinet/in.h>
#include <sys/socket.h>

/* The headers of these libraries are not always there, and nothing of them is used: what of the
 * struct is, the address, lies before what they add to it. */
#undef ENABLE_GSS
#undef ENABLE_SSPI
#undef USE_OPENSSL
#include "libpq/libpq-be.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

static GateSession session;

void
gate_forget_session(void)
{
	session.identified = false;
	session.resolved = false;
}

static void
roles_changed(Datum arg, int cache, uint32 hash)
{
	gate_forget_session();
}

static void
hear_of_roles(void)
{
	static bool heard = false;

	if (heard)
		return;
	CacheRegisterSyscacheCallback(AUTHOID, roles_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, roles_changed, (Datum) 0);
	heard = true;
}

/* ── Bypass ───────────────────────────────────────────────────────────────── */

static bool
is_member_of_any(Oid role, const char *list)
{
	char	   *copy = pstrdup(list);
	List	   *names;
	ListCell   *cell;
	bool		member = false;

	if (SplitIdentifierString(copy, ',', &names))
	{
		foreach(cell, names)
		{
			Oid			of = get_role_oid(lfirst(cell), true);

			member = member || (OidIsValid(of) && is_member_of_role_nosuper(role, of));
		}
	}
	list_free(names);
	pfree(copy);
	return member;
}

static bool
bypasses(Oid role)
{
	if (gate_bypass_superuser && superuser_arg(role))
		return true;
	return gate_bypass_roles[0] != '\0' && is_member_of_any(role, gate_bypass_roles);
}

/* ── Address ──────────────────────────────────────────────────────────────── */

static void
set_ipv4(hg_client *client, const void *address)
{
	client->family = 4;
	memcpy(client->address, address, 4);
}

/* A socket that listens to both families shows IPv4 as ::ffff:a.b.c.d. */
static void
set_ipv6(hg_client *client, const struct in6_addr *address)
{
	if (IN6_IS_ADDR_V4MAPPED(address))
	{
		set_ipv4(client, &address->s6_addr[12]);
		return;
	}
	client->family = 6;
	memcpy(client->address, address->s6_addr, 16);
}

static void
set_address(hg_client *client)
{
	const struct sockaddr_storage *peer = &MyProcPort->raddr.addr;

	client->family = 0;
	memset(client->address, 0, sizeof client->address);
	if (peer->ss_family == AF_INET)
		set_ipv4(client, &((const struct sockaddr_in *) peer)->sin_addr);
	else if (peer->ss_family == AF_INET6)
		set_ipv6(client, &((const struct sockaddr_in6 *) peer)->sin6_addr);
}

/* ── Both steps ───────────────────────────────────────────────────────────── */

const hg_client *
gate_client(void)
{
	return &session.client;
}

void
gate_identify(void)
{
	Oid			role = GetSessionUserId();
	bool		bypassed;

	if (likely(session.identified && session.role == role))
		return;
	hear_of_roles();
	/* A role may have been dropped under us: then nobody is named by that name. */
	strlcpy(session.username, "", NAMEDATALEN);
	if (SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		strlcpy(session.username, GetUserNameFromId(role, false), NAMEDATALEN);
	bypassed = bypasses(role);
	session.client.username = session.username;
	session.client.database = MyProcPort->database_name;
	session.client.application_name = session.application;
	set_address(&session.client);
	session.role = role;
	session.bypassed = bypassed;
	session.resolved = false;
	session.identified = true;
}

/* When the next of the policy's budgets ends: until then, what matches goes on to match. */
static int64
next_end_ms(const hg_policy *policy)
{
	int64		now_ms = gate_clock_us / 1000;
	int64		next = PG_INT64_MAX;

	if (policy->gates.count > 0)
		next = hg_gates_until(policy, now_ms);
	if ((policy->flags & HG_POLICY_EXPIRES) == 0)
		return next;
	for (uint32 i = 0; i < policy->budgets.count; i++)
	{
		int64		end = gate_budget(policy, i)->expires_at_ms;

		if (end > now_ms && end < next)
			next = end;
	}
	return next;
}

static bool
same_name(void)
{
	return !session.named || strcmp(session.application, application_name) == 0;
}

static bool
may_match(void)
{
	return !session.bypassed && !session.core.exempt && (session.core.may_match || session.gated);
}

static bool
has_shut_budget(const hg_policy *policy)
{
	for (uint32 i = 0; i < policy->budgets.count; i++)
	{
		const hg_budget *budget = gate_budget(policy, i);

		if (budget->mode == HG_MODE_ENFORCE && hg_is_shut(budget))
			return true;
	}
	return false;
}

static bool
has_hold(const hg_policy *policy)
{
	for (uint32 i = 0; i < policy->gates.count; i++)
	{
		const hg_gate *gate = hg_gate_at(policy, i);

		if (gate->kind == HG_GATE_REJECTS && gate->ratio == HG_ALL)
			return true;
	}
	return false;
}

/* By what clients are named, and whether that may change within a session. */
static void
resolve_naming(const hg_policy *policy)
{
	const hg_identity *identity = hg_identity_of(policy);

	session.gated = identity != NULL && policy->gates.count > 0;
	session.by_tags = identity != NULL && identity->trusts > 0;
	session.by_pattern = false;
	for (uint32 i = 0; identity != NULL && i < identity->sources; i++)
	{
		session.by_tags |= identity->source[i].kind == HG_FROM_TAG;
		session.by_pattern |= identity->source[i].kind == HG_FROM_PATTERN;
		session.named |= identity->source[i].kind == HG_FROM_APPLICATION;
	}
}

static void
resolve(const hg_policy *policy)
{
	strlcpy(session.application, application_name, NAMEDATALEN);
	session.named = (policy->system_keys & (1u << HG_KEY_APPLICATION_NAME)) != 0;
	session.from_guc = policy == gate_guc_policy;
	session.version = policy->version;
	session.crc = policy->crc;
	session.sound_until_ms = next_end_ms(policy);
	hg_session_resolve(policy, &session.client, &session.core);
	resolve_naming(policy);
	session.shut = may_match() && (has_shut_budget(policy) || (session.gated && has_hold(policy)));
	session.generation++;
	session.resolved = true;
}

const GateSession *
gate_session(const hg_policy *policy)
{
	if (!session.resolved || session.version != policy->version || session.crc != policy->crc
		|| session.from_guc != (policy == gate_guc_policy) || !same_name()
		|| gate_clock_us / 1000 >= session.sound_until_ms)
		resolve(policy);
	return may_match() ? &session : NULL;
}

static bool
under_present_policy(void)
{
	if (session.from_guc)
		return !gate_file_in_force();
	return gate_file_in_force()
		&& session.version == atomic_load_explicit(&gate_region->version, memory_order_relaxed)
		&& session.crc == atomic_load_explicit(&gate_region->crc, memory_order_relaxed);
}

static bool
is_resolved(void)
{
	return session.resolved && session.identified && session.role == GetSessionUserId()
		&& under_present_policy() && same_name();
}

bool
gate_surely_free(void)
{
	return !(session.resolved && may_match()) && is_resolved();
}

bool
gate_is_free(void)
{
	const hg_policy *policy;

	if (unlikely(!is_resolved()))
	{
		gate_identify();
		policy = gate_enter();
		if (policy == NULL)
			return true;
		(void) gate_session(policy);
		gate_leave();
	}
	return !may_match();
}

bool
gate_may_be_shut(void)
{
	return !session.resolved || session.shut || !under_present_policy();
}

bool
gate_bypassed(void)
{
	return session.identified && session.bypassed;
}
