"""Which gateways there are on which nodes, what they are started with, and where they reach the server."""

from typing import Any

import pytest

from polar_mitm.errors import NotReady
from polar_mitm.rollout.cluster.placing import Placing, Secret, actor_options, names, server_url
from polar_mitm.rollout.server.settings import SettingsError


def node(address: str = "10.0.0.1", *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "NodeManagerAddress": address, "Resources": {"CPU": 8.0} | resources}


def test_there_is_a_gateway_for_each_node_with_room() -> None:
    nodes = [node(), node(CPU=1.0), node(alive=False), node(gateway=2.0)]
    assert names(Placing(cpus=1), nodes) == ["gw-0", "gw-1", "gw-2"]
    assert names(Placing(cpus=2), nodes) == ["gw-0", "gw-1"]
    assert names(Placing(cpus=2, resource="gateway"), nodes) == ["gw-0"]
    assert names(Placing(gateways=5), nodes) == [f"gw-{number}" for number in range(5)]


def test_a_cluster_without_room_is_named_with_what_it_lacks() -> None:
    with pytest.raises(NotReady, match="none of the Ray cluster's 1 nodes has 4 CPU, 1 gateway"):
        names(Placing(cpus=4, resource="gateway"), [node()])


def test_actors_are_spread_begun_again_and_never_asked_twice() -> None:
    options = actor_options("gw-1", Placing(cpus=2, resource="gateway"))
    assert options == {
        "name": "gw-1",
        "namespace": "polar",
        "num_cpus": 2,
        "resources": {"gateway": 1.0},
        "scheduling_strategy": "SPREAD",
        "max_restarts": -1,
        "max_task_retries": 0,
    }


def test_the_token_stands_in_nothing_that_is_printed() -> None:
    assert "hidden" not in f"{Secret('hidden')!r} {Secret('hidden')} {[Secret('hidden')]}"


@pytest.mark.parametrize(
    ("url", "nodes", "reached"),
    [
        ("http://127.0.0.1:8090", [node("10.0.0.1")], "http://127.0.0.1:8090"),
        ("http://0.0.0.0:8090", [node("10.0.0.2")], "http://10.0.0.1:8090"),
        ("http://[::]:8090", [node("10.0.0.2")], "http://10.0.0.1:8090"),
        ("http://10.0.0.1:8090", [node("10.0.0.2")], "http://10.0.0.1:8090"),
        ("http://head.cluster:8090", [node("10.0.0.2")], "http://head.cluster:8090"),
        ("http://127.0.0.1:8090", [node("10.0.0.2", alive=False)], "http://127.0.0.1:8090"),
    ],
)
def test_gateways_are_told_an_address_that_they_reach(url: str, nodes: list[dict[str, Any]], reached: str) -> None:
    assert server_url(url, nodes, "10.0.0.1") == reached


def test_a_server_on_loopback_is_refused_where_other_nodes_would_call_it() -> None:
    with pytest.raises(
        SettingsError, match=r"10\.0\.0\.2 cannot reach http://127\.0\.0\.1:8090: say --host 10\.0\.0\.1"
    ):
        server_url("http://127.0.0.1:8090", [node("10.0.0.1"), node("10.0.0.2")], "10.0.0.1")


@pytest.mark.parametrize("argument", ["--name", "--state=/tmp/x", "--server-url"])
def test_options_that_every_gateway_is_given_are_refused(argument: str) -> None:
    with pytest.raises(SettingsError, match=argument.split("=")[0]):
        Placing(arguments=(argument,))
