"""hosts.toml: the machines of a run, as `thinwire launch` reads them."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinwire.cluster._lines import toml_lines
from thinwire.cluster._read import syntax_line
from thinwire.cluster._table import Source, Table, text_of, whole_of
from thinwire.errors import InputError, nearest

__all__ = ["Hosts", "Machine", "load_hosts"]

SCHEMA = 1
PORT = 29500
_TOP_KEYS = ("schema", "port", "master", "defaults", "hosts")
_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                    "MASTER_PORT")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host.

    Args:
        name: for messages; unique.
        address: that the other hosts reach.
        processes: to start on it, 1 or more.
        interface: name or address; None is the one that leads to the first host.
        python: the interpreter there; None is the torchrun on its path.
        workdir: where the script lies there; None is where a login starts.
        env: variables of its processes.
        ssh: the target for ssh, such as me@bob; None is the address.
    """

    name: str
    address: str
    processes: int = 1
    interface: str | None = None
    python: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ssh: str | None = None

    @property
    def target(self) -> str:
        """What ssh is told."""
        return self.ssh or self.address


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """All hosts; the first has the meeting point, at `port`."""

    machines: tuple[Machine, ...]
    port: int = PORT


def load_hosts(file: Path) -> Hosts:
    """Read the file.

    Raises:
        InputError: it cannot be read, or anything in it is wrong, as "file:line: what".
    """
    try:
        text = file.read_text().removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}:{syntax_line(text, error)}: not valid TOML: {error}") from None
    top = Table(Source(name=str(file), lines=toml_lines(text), folder=file.parent), (), values)
    if "nodes" in top.items:
        top.fail("nodes", "this describes a cluster to simulate; hosts to start are [[hosts]]")
    top.only(_TOP_KEYS, "a file of hosts")
    if top.get("schema", whole_of, SCHEMA) != SCHEMA:
        top.fail("schema", f"this version of thinwire reads schema {SCHEMA}")
    return _hosts(top)


def _hosts(top: Table) -> Hosts:
    defaults = top.table("defaults")
    if defaults is not None:
        defaults.only(tuple(_READERS), "defaults")
    tables = top.tables("hosts")
    if not tables:
        top.fail("hosts", "no hosts: add [[hosts]] with name and address for each")
    machines: list[Machine] = []
    for table in tables:
        table.only(("name", "address", "ssh", *_READERS), "a host")
        machine = _machine(table, defaults)
        for key in ("name", "address"):
            value = getattr(machine, key)
            if value in [getattr(other, key) for other in machines]:
                table.fail(
                    key, f"{key} = {value!r} is there twice; several processes: processes = 2"
                )
        machines.append(machine)
    machines = _master_first(top, machines)
    _check_loopback(tables, machines)
    return Hosts(machines=tuple(machines), port=top.get("port", _port, PORT))


def _machine(table: Table, defaults: Table | None) -> Machine:
    fields: dict[str, Any] = {}
    for key, read in _READERS.items():
        for source in (defaults, table):
            if source is None or key not in source.items:
                continue
            value = source.get(key, read, None)
            fields[key] = {**fields.get(key, {}), **value} if key == "env" else value
    name = table.need("name", _word, 'a host needs a name: name = "alice"')
    return Machine(
        name=name,
        address=table.get("address", _word, name),
        ssh=table.get("ssh", _word, None),
        **fields,
    )


def _master_first(top: Table, machines: list[Machine]) -> list[Machine]:
    master = top.get("master", text_of, machines[0].name)
    names = [machine.name for machine in machines]
    if master not in names:
        top.fail("master", f"master = {master!r} is none of the hosts: {nearest(master, names)}")
    first = names.index(master)
    return [machines[first], *machines[:first], *machines[first + 1 :]]


def _check_loopback(tables: list[Table], machines: list[Machine]) -> None:
    local = [machine.name for machine in machines if _is_loopback(machine.address)]
    if local and len(local) < len(machines):
        for table in tables:
            if table.items["name"][0] in local:
                table.fail(
                    "address",
                    f"host {local[0]!r} has the loopback address, which the other hosts cannot "
                    "reach: give the one of its network interface",
                )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


# Readers of single values.


def _word(value: Any) -> str:
    if not re.fullmatch(r"[^\s\-][^\s]*", text_of(value)):
        raise InputError(f"{value!r} must be text without spaces that does not begin with '-'")
    return value


def _some_text(value: Any) -> str:
    if not text_of(value).strip() or "\n" in value:
        raise InputError(f"{value!r} must be one line of text")
    return value


def _processes(value: Any) -> int:
    if not 1 <= whole_of(value) <= 1024:
        raise InputError(f"{value!r} must be 1 to 1024")
    return value


def _port(value: Any) -> int:
    if not 1 <= whole_of(value) <= 65535:
        raise InputError(f"{value!r} must be 1 to 65535")
    return value


def _env(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InputError(f'{value!r} must be a table: env = {{ NAME = "value" }}')
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(f"{name!r} is no name of a variable")
        if name in _SET_BY_TORCHRUN:
            raise InputError(f"{name} has no effect: torchrun sets it")
        if not isinstance(text, str):
            raise InputError(f'{name} = {text!r} must be text: {name} = "{text}"')
    return dict(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "processes": _processes,
    "interface": _word,
    "python": _some_text,
    "workdir": _some_text,
    "env": _env,
}
