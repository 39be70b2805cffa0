"""How processes find and accept each other, and what they say when they cannot."""

import socket
import threading

import pytest

from thinwire.errors import InputError, RendezvousError
from thinwire.testing.processes import run_processes
from thinwire.wire.sockets import connect

pytestmark = pytest.mark.distributed


def meet(rank, size, options=None):
    chosen = (options or {}).get(rank, {})
    with connect(**{"meeting_deadline": 20.0, **chosen}) as comm:
        return comm.size


def errors(outcomes):
    assert all(isinstance(outcome, RendezvousError) for outcome in outcomes), outcomes
    return [str(outcome) for outcome in outcomes]


def test_two_versions_that_meet_are_named_on_every_rank():
    options = {2: {"expected": {"version of thinwire": "0.0.1"}}}
    texts = errors(run_processes(meet, 3, options))
    assert len(set(texts)) == 1
    assert "differ in version of thinwire" in texts[0]
    assert "'0.0.1' on rank 2" in texts[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({1: {"expected": {"method": "gtopk"}}}, "differ in method: None on rank 0"),
        ({1: {"losses": "elastic"}}, "differ in losses: 'strict' on rank 0"),
        ({1: {"num_servers": 1}}, "differ in number of servers: '0' on rank 0"),
    ],
)
def test_settings_that_differ_are_named_with_both_values(options, text):
    for message in errors(run_processes(meet, 2, options)):
        assert text in message


def test_a_wrong_world_size_is_named_at_once():
    outcomes = run_processes(meet, 3, env_of=[{}, {"WORLD_SIZE": "4"}, {}])
    for message in errors(outcomes):
        assert "differ in world size" in message
        assert "'4' on rank 1" in message
        assert "'3' on rank 0" in message or "'3' on rank 2" in message  # whichever came first


def test_ranks_that_never_came_are_named():
    options = {r: {"meeting_deadline": 1.0} for r in range(4)}
    for message in errors(run_processes(meet, 4, options, ranks=[0, 2])):
        assert "these ranks never came: 1, 3" in message


def test_a_rank_that_comes_twice_is_refused_and_the_first_is_named():
    options = {r: {"meeting_deadline": 2.0} for r in range(2)}
    messages = errors(run_processes(meet, 2, options, env_of=[{"RANK": "1"}] * 2))
    assert any("another process has already come as rank 1" in message for message in messages)
    assert any("never came: 0" in message for message in messages)


def test_a_rank_outside_the_world_is_refused():
    (message,) = errors(run_processes(meet, 2, ranks=[5]))
    assert "RANK = 5 with WORLD_SIZE = 2; valid: 0..1" in message


def test_half_an_environment_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(RendezvousError, match="WORLD_SIZE is not set"):
        connect()


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port)}
        (message,) = errors(run_processes(meet, 2, ranks=[0], env=env))
    assert f"rank 0 cannot listen at MASTER_ADDR:MASTER_PORT = 127.0.0.1:{port}" in message
    assert "--master-port" in message


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def test_a_missing_rank_0_is_named():
    env = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": free_port()}
    options = {1: {"meeting_deadline": 1.0}}
    (message,) = errors(run_processes(meet, 2, options, ranks=[1], env=env))
    assert "rank 1 finds no meeting point" in message
    assert "is rank 0 running" in message


def test_rank_0_hosts_the_meeting_where_no_launcher_does():
    env = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": free_port()}
    assert run_processes(meet, 3, env=env) == [3, 3, 3]


def test_what_differs_is_named_on_every_rank_also_where_rank_0_hosts_the_meeting():
    env = {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": free_port()}
    options = {1: {"expected": {"method": "gtopk"}}}
    texts = errors(run_processes(meet, 3, options, env=env))
    assert len(set(texts)) == 1


def test_loopback_is_refused_where_the_run_spans_hosts():
    env_of = [{"THINWIRE_HOST_ID": name} for name in ("a", "a", "b")]
    for message in errors(run_processes(meet, 3, env_of=env_of)):
        assert "spans 2 hosts, but rank 0, 1, 2 would listen on the loopback address" in message
        assert "THINWIRE_INTERFACE or --interface" in message


def test_an_interface_that_does_not_exist_is_named_with_the_nearest():
    (message,) = errors(run_processes(meet, 2, ranks=[0], env={"THINWIRE_INTERFACE": "lo0"}))
    assert "interface = 'lo0' has no IPv4 address here" in message
    assert "did you mean 'lo'?" in message


def test_an_address_of_another_machine_is_refused():
    options = {0: {"interface": "192.0.2.7"}}
    (message,) = errors(run_processes(meet, 2, options, ranks=[0]))
    assert "interface = '192.0.2.7': this machine has no such address" in message


def test_an_interface_can_be_chosen_by_name():
    assert run_processes(meet, 2, env={"THINWIRE_INTERFACE": "lo"}) == [2, 2]


def test_a_master_that_cannot_be_resolved_does_not_matter_on_one_host():
    env = {"MASTER_ADDR": "no-such-host.invalid", "LOCAL_WORLD_SIZE": "2"}
    assert run_processes(meet, 2, env=env) == [2, 2]


def test_a_master_that_cannot_be_resolved_is_named_otherwise():
    env = {"MASTER_ADDR": "no-such-host.invalid"}
    (message,) = errors(run_processes(meet, 2, ranks=[0], env=env))
    assert "MASTER_ADDR = 'no-such-host.invalid' cannot be resolved" in message


def test_two_runs_at_once_do_not_meet():
    outcomes = {}

    def run(size):
        outcomes[size] = run_processes(meet, size)

    threads = [threading.Thread(target=run, args=(size,)) for size in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {2: [2, 2], 3: [3, 3, 3]}


def meet_twice(rank, size):
    with connect() as first:
        pass
    with connect() as second:
        return first.size + second.size


def test_the_same_processes_may_meet_again():
    assert run_processes(meet_twice, 2) == [4, 4]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"losses": "lax"}, "losses = 'lax'; valid: strict, elastic"),
        ({"deadline": 0.0}, "deadline = 0.0 s"),
        ({"num_servers": -1}, "num_servers = -1"),
    ],
)
def test_bad_arguments_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        connect(**options)
