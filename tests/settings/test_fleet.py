"""[fleet] and [patroni] of the settings file: who may be asked, how, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import InvalidSettings
from headgate.settings.agent import parse_settings
from headgate.settings.fleet import EtcdSettings, PatroniSettings

DATABASE = '[databases.main]\nengine = "postgres"\ndsn = "dbname=app"\n'
SECURE = """
[fleet]
endpoints = ["https://etcd-1:2379/", "https://etcd-2:2379"]
username = "headgate"
password_file = "/etc/headgate/etcd.password"
ca = "/etc/headgate/ca.pem"
prefix = "/db/headgate"
region = "eu-west"
cluster = "commerce"
"""


def test_a_fleet_is_read_whole() -> None:
    fleet = parse_settings(SECURE).fleet
    assert fleet is not None
    assert fleet.etcd == EtcdSettings(
        ("https://etcd-1:2379", "https://etcd-2:2379"),
        "headgate",
        Path("/etc/headgate/etcd.password"),
        Path("/etc/headgate/ca.pem"),
    )
    assert (fleet.prefix, fleet.region, fleet.cluster) == ("/db/headgate/", "eu-west", "commerce")
    assert (fleet.view, fleet.register) == (False, True)


def test_without_the_section_there_is_no_fleet() -> None:
    settings = parse_settings(DATABASE)
    assert settings.fleet is None
    assert settings.patroni == PatroniSettings()


@pytest.mark.parametrize(
    ("content", "place", "said"),
    [
        ("[fleet]", "fleet.endpoints", "is missing"),
        ('[fleet]\nendpoints = "https://a:1"', "fleet.endpoints", "must be a list"),
        ("[fleet]\nendpoints = []", "fleet.endpoints", "has 0 entries"),
        ('[fleet]\nendpoints = ["https://a:1", "b"]', "fleet.endpoints", "entry 2 must read like"),
        ('[fleet]\nendpoints = ["https://u:p@a:1"]', "fleet.endpoints", "must read like"),
        ('[fleet]\nendpoints = ["https://a:99999"]', "fleet.endpoints", "must read like"),
        ('[fleet]\nendpoints = ["http://10.0.0.1:2379"]', "fleet.endpoints", "without TLS"),
        (
            '[fleet]\nendpoints = ["http://127.0.0.1:1", "https://b:1"]',
            "fleet.endpoints",
            "mix http and https",
        ),
        ('[fleet]\nendpoints = ["https://a:1"]\nusername = "x"', "fleet.username", "go together"),
        ('[fleet]\nendpoints = ["https://a:1"]\ncert = "/c"', "fleet.cert", "go together"),
        ('[fleet]\nendpoints = ["https://a:1"]\nprefix = "x"', "fleet.prefix", "begin with /"),
        ('[fleet]\nendpoint = ["https://a:1"]', "fleet.endpoint", "did you mean 'endpoints'"),
        ('[agent]\nelect = "pair"', "agent.elect", "needs [fleet]"),
        (DATABASE + 'patroni = "batman"', "databases.main.patroni", "needs etcd"),
        (
            DATABASE + 'patroni = "b"\n[patroni]\nendpoints = ["https://a:1"]',
            "databases.main.patroni",
            "needs discover",
        ),
    ],
)
def test_what_cannot_be_is_said_with_its_place(content: str, place: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parse_settings(content)
    assert any(f.place == place and said in f.message for f in caught.value.faults), caught.value


def test_a_pair_has_one_way_to_choose() -> None:
    both = '[agent]\nelect = "pair"\nstandby_for = "http://127.0.0.1:1"\n'
    with pytest.raises(InvalidSettings, match="exclude each other"):
        parse_settings(both + '[fleet]\nendpoints = ["https://a:1"]')


def test_a_pair_by_the_defaults_is_warned_of() -> None:
    """Of two hosts with the same loopback address, each takes the other for itself."""
    fleet = '[fleet]\nendpoints = ["https://a:1"]\n'
    [told] = parse_settings('[agent]\nelect = "pair"\n' + fleet).advice
    assert (told.code, told.place) == ("elect-loopback", "agent.advertise")
    agent = '[agent]\nelect = "pair"\nadvertise = "https://db-a:8087"\n'
    assert not parse_settings(agent + fleet).advice
    among = 'elect_among = ["https://db-b:8087", "https://{host}:8097"]\n'
    given = parse_settings(agent + among + fleet).agent.elect_among
    assert given == ("https://db-b:8087", "https://{host}:8097")
    for wrong in ('["db-b"]', '"https://a:1"', "[]", '["https://{x}:1"]'):
        with pytest.raises(InvalidSettings, match="elect_among"):
            parse_settings(f"{agent}elect_among = {wrong}\n{fleet}")


def test_a_password_is_in_no_message() -> None:
    with pytest.raises(InvalidSettings) as caught:
        parse_settings('[fleet]\nendpoints = ["https://user:secret@a:1"]')
    assert "secret" not in str(caught.value)
