"""A policy as it is written down, and back.   TOML or JSON ──parse_policy──► Policy ──written──►

Every fault comes with its place (`budgets[2].rate: 120 is more than 100`), not only the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Network, ip_network
from typing import Any

from headgate.base.declared import read_table, unknown
from headgate.budgets.limits import BUDGET_RULE_SETTINGS, BUDGET_SETTINGS, POLICY_SETTINGS
from headgate.budgets.policy import (
    FINGERPRINT,
    MAX_BUDGETS,
    MAX_CONDITIONS,
    MAX_EACHES,
    MAX_EXEMPT,
    MAX_KEY_BYTES,
    MAX_RULES,
    MAX_VALUE_BYTES,
    QUERY,
    REMOTE_ADDRESS,
    SYSTEM_KEYS,
    Budget,
    BudgetRule,
    Condition,
    Policy,
    UnknownHealth,
    budget_rule,
    is_tag,
    number_value,
    tag_name,
)
from headgate.errors import Fault, InvalidSettings

MAX_FAULTS = 200
"""Then it stops looking: ten thousand budgets with one typing error each are one mistake."""

_SECTIONS = ("policy", "budgets")
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_HEX = re.compile(r"[0-9a-fA-F]{16}")
_CIDR = re.compile(r"[0-9a-fA-F.:]+(/(0|[1-9][0-9]{0,2}))?")
_MAPPED = IPv6Network("::ffff:0:0/96")


def parse_policy(raw: object) -> Policy:
    """The policy, or InvalidSettings with its faults."""
    if not isinstance(raw, Mapping):
        raise InvalidSettings([Fault("", "must be a table with `policy` and `budgets`")])
    faults = [Fault(key, unknown(key, _SECTIONS)) for key in raw if key not in _SECTIONS]
    general, found = read_table(raw.get("policy", {}), POLICY_SETTINGS, place="policy")
    faults += found
    exempt = _exempt(general.get("exempt_usernames", ()), "policy.exempt_usernames", faults)
    budgets = _budgets(raw.get("budgets", ()), faults)
    if faults:
        raise InvalidSettings(_told(faults))
    return Policy(tuple(budgets), general["health_unknown"], exempt)


def parse_budget(raw: object, place: str = "budget") -> Budget:
    """One budget with its rules, or InvalidSettings with its faults."""
    faults: list[Fault] = []
    budget = _budget(raw, place, faults)
    if faults or budget is None:
        raise InvalidSettings(_told(faults))
    return budget


def parse_key(key: object) -> str:
    """A key of rules: one of the server's, or `tag.NAME`."""
    if not isinstance(key, str):
        raise ValueError("must be the name of a key, such as username or tag.controller")
    if key in SYSTEM_KEYS:
        return key
    if not is_tag(key):
        named = unknown(key, (*SYSTEM_KEYS, f"tag.{key}"))
        raise ValueError(named.replace("unknown setting", "unknown key"))
    length = len(_bytes(tag_name(key)))
    if not 1 <= length <= MAX_KEY_BYTES:
        raise ValueError(f"has a tag's name of {length} bytes, must be 1 to {MAX_KEY_BYTES}")
    return key


def parse_value(key: str, value: object) -> bytes:
    """What a statement's value of `key` is compared with, or ValueError."""
    if key == QUERY:
        return _query(value)
    if not isinstance(value, str):
        raise ValueError(_not_text(key, value))
    if key == REMOTE_ADDRESS:
        return _address(value)
    if key == FINGERPRINT:
        return _fingerprint(value)
    return _value_bytes(value)


# --- budgets -------------------------------------------------------------------------------


def _budgets(raw: object, faults: list[Fault]) -> list[Budget]:
    if not isinstance(raw, list | tuple):
        faults.append(Fault("budgets", "must be a list of tables: [[budgets]]"))
        return []
    if not _few_enough(raw, faults):
        return []
    budgets, places = list[Budget](), dict[str, str]()
    for index, one in enumerate(raw):
        place = f"budgets[{index}]"
        budget = _budget(one, place, faults)
        if budget is not None:
            budgets.append(budget)
        _note_name(one, place, places, faults)
        if len(faults) > MAX_FAULTS:
            break
    return budgets


def _few_enough(raw: list[Any] | tuple[Any, ...], faults: list[Fault]) -> bool:
    if len(raw) > MAX_BUDGETS:
        faults.append(Fault("budgets", f"has {len(raw):,} budgets, at most {MAX_BUDGETS:,}"))
        return False
    listed = (one.get("rules") for one in raw if isinstance(one, Mapping))
    count = sum(len(rules) for rules in listed if isinstance(rules, list | tuple))
    if count > MAX_RULES:
        faults.append(Fault("budgets", f"has {count:,} rules in all, at most {MAX_RULES:,}"))
    return count <= MAX_RULES


def _note_name(raw: object, place: str, places: dict[str, str], faults: list[Fault]) -> None:
    name = raw.get("name") if isinstance(raw, Mapping) else None
    if not isinstance(name, str):
        return
    first = places.setdefault(name, place)
    if first != place:
        message = f"{name!r} is the name of {first} as well: a budget is known by its name"
        faults.append(Fault(f"{place}.name", message))


def _budget(raw: object, place: str, faults: list[Fault]) -> Budget | None:
    values, found = read_table(raw, BUDGET_SETTINGS, place=place, sections=frozenset({"rules"}))
    if not isinstance(raw, Mapping):
        faults.extend(found)
        return None
    if "name" not in raw:
        found.append(Fault(f"{place}.name", "is missing: a budget is known by its name"))
    if values["concurrency"] is not None and values["max_workers"] is not None:
        message = "is the same limit as concurrency in another unit: give one of the two"
        found.append(Fault(f"{place}.max_workers", message))
    rules = _rules(raw.get("rules", ()), f"{place}.rules", found)
    faults.extend(found)
    if found:
        return None
    fields = {row.field: values[name] for name, row in BUDGET_SETTINGS.items()}
    return Budget(**fields, rules=rules)


def _rules(raw: object, place: str, faults: list[Fault]) -> tuple[BudgetRule, ...]:
    if not isinstance(raw, list | tuple):
        faults.append(Fault(place, "must be a list of tables: [[budgets.rules]]"))
        return ()
    if len(raw) > MAX_RULES:
        faults.append(Fault(place, f"has {len(raw):,} rules, at most {MAX_RULES:,}"))
        return ()
    rules = []
    for index, one in enumerate(raw):
        rules.append(_rule(one, f"{place}[{index}]", faults))
        if len(faults) > MAX_FAULTS:
            break
    return tuple(rules)


def _rule(raw: object, place: str, faults: list[Fault]) -> BudgetRule:
    values, found = read_table(raw, BUDGET_RULE_SETTINGS, place=place)
    faults.extend(found)
    if not isinstance(raw, Mapping):
        return BudgetRule()
    conditions = _conditions(values["match"], f"{place}.match", faults) if "match" in raw else []
    each = _each(values["each"], f"{place}.each", faults) if "each" in raw else []
    return budget_rule(conditions, each)


def _conditions(raw: object, place: str, faults: list[Fault]) -> list[Condition]:
    if not isinstance(raw, Mapping):
        faults.append(Fault(place, 'must be a table of keys and values: { username = "etl" }'))
        return []
    if len(raw) > MAX_CONDITIONS:
        faults.append(Fault(place, f"has {len(raw)} keys, at most {MAX_CONDITIONS}"))
        return []
    conditions = []
    for key, value in raw.items():
        try:
            _no_dotted_tag(key, value)
            conditions.append(Condition(parse_key(key), parse_value(key, value)))
        except ValueError as error:
            faults.append(Fault(f"{place}.{key}", str(error)))
    return conditions


def _no_dotted_tag(key: object, value: object) -> None:
    """What TOML makes of `tag.controller = "export"`."""
    if key == "tag" and isinstance(value, Mapping) and value:
        name = next(iter(value))
        raise ValueError(f'is a table: quote the whole key, "tag.{name}" = …')


def _each(raw: object, place: str, faults: list[Fault]) -> list[str]:
    if not isinstance(raw, list | tuple):
        faults.append(Fault(place, 'must be a list of keys: ["tag.tenant"]'))
        return []
    if len(raw) > MAX_EACHES:
        faults.append(Fault(place, f"has {len(raw)} keys, at most {MAX_EACHES}"))
        return []
    keys = list[str]()
    for index, key in enumerate(raw):
        try:
            keys.append(_new(parse_key(key), keys))
        except ValueError as error:
            faults.append(Fault(f"{place}[{index}]", str(error)))
    return keys


def _exempt(raw: object, place: str, faults: list[Fault]) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple):
        faults.append(Fault(place, "must be a list of usernames"))
        return ()
    if len(raw) > MAX_EXEMPT:
        faults.append(Fault(place, f"has {len(raw)} usernames, at most {MAX_EXEMPT}"))
        return ()
    usernames = list[str]()
    for index, username in enumerate(raw):
        try:
            usernames.append(_new(_username(username), usernames))
        except ValueError as error:
            faults.append(Fault(f"{place}[{index}]", str(error)))
    return tuple(usernames)


def _new(name: str, names: list[str]) -> str:
    if name in names:
        raise ValueError(f"{name!r} is named twice")
    return name


def _username(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a username")
    _value_bytes(value)
    return value


def _told(faults: list[Fault]) -> list[Fault]:
    if len(faults) <= MAX_FAULTS:
        return faults
    message = f"there may be more: parsing stopped after {MAX_FAULTS} faults"
    return [*faults[:MAX_FAULTS], Fault("", message)]


# --- values --------------------------------------------------------------------------------


def _bytes(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate), which no text has") from None


def _value_bytes(value: str) -> bytes:
    encoded = _bytes(value)
    if len(encoded) > MAX_VALUE_BYTES:
        raise ValueError(f"has {len(encoded):,} bytes, at most {MAX_VALUE_BYTES:,}")
    if b"\0" in encoded:
        raise ValueError("holds a NUL byte, which no server's text has")
    return encoded


def _not_text(key: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'must be a string: write "{value}" in quotes'
    return f"must be a string, one value; for several values of {key} give several rules"


def _query(value: object) -> bytes:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be the server's query id, a whole number such as -4018512342")
    if not -(2**63) <= value < 2**64:
        raise ValueError("is no number of 64 bits, as a query id is")
    if value == 0:
        raise ValueError("is 0, which the server says of a statement without a query id")
    return number_value(value)


def _fingerprint(value: str) -> bytes:
    if not _HEX.fullmatch(value):
        raise ValueError(f"is {value[:40]!r}, must be the 16 hexadecimal digits of a fingerprint")
    return number_value(int(value, 16))


def _address(value: str) -> bytes:
    if not _CIDR.fullmatch(value):
        raise ValueError(f"is {value[:50]!r}, must be an address or a prefix such as 10.0.0.0/8")
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"is {value!r}, which is no address or prefix") from None
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        bits = network.prefixlen - 96
        as_ipv4 = ip_network((network.network_address.packed[12:], bits))
        raise ValueError(f"is {value!r}: the server sees such clients as IPv4, write {as_ipv4}")
    if "/" in value and ip_network(value.partition("/")[0]).network_address != (
        network.network_address
    ):
        raise ValueError(f"is {value!r}, which has bits beyond its prefix; write {network}")
    return network.network_address.packed + bytes((network.prefixlen,))


# --- as it is written ------------------------------------------------------------------------


def written(policy: Policy) -> dict[str, Any]:
    """As parse_policy takes it; JSON can hold it. What is as by default is left out."""
    general: dict[str, Any] = {}
    if policy.health_unknown is not UnknownHealth.HEALTHY:
        general["health_unknown"] = policy.health_unknown.value
    if policy.exempt_usernames:
        general["exempt_usernames"] = list(policy.exempt_usernames)
    document: dict[str, Any] = {"policy": general} if general else {}
    return document | {"budgets": [written_budget(budget) for budget in policy.budgets]}


def written_budget(budget: Budget) -> dict[str, Any]:
    """As parse_budget takes it: name and mode, and what is not as by default."""
    given: dict[str, Any] = {}
    for name, row in BUDGET_SETTINGS.items():
        value = getattr(budget, row.field)
        if name in ("name", "mode") or value != row.default:
            given[name] = row.write(value)
    if budget.rules:
        given["rules"] = [written_rule(rule) for rule in budget.rules]
    return given


def written_rule(rule: BudgetRule) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if rule.conditions:
        given["match"] = {condition.key: condition.shown for condition in rule.conditions}
    if rule.each:
        given["each"] = list(rule.each)
    return given
