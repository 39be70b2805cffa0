"""What each host of `benchmarks/fidelity.py` does: its rows, each host with a pace of its own."""

from __future__ import annotations

import json
import os
import sys

import torch

from _wire_host import Host, rows_of, split
from thinwire.methods import METHODS
from thinwire.wire.sockets import connect


def main(rows: str, results: str) -> None:
    """Run all rows; what each took goes to `results`, with the rank at the end of its name."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    asked = list(rows_of(rows))
    servers = max(METHODS[split(row["method"])[0]].num_servers for row in asked)
    with (
        connect(deadline=120.0, num_servers=servers) as comm,
        open(f"{results}.{comm.rank}", "a") as out,
    ):
        host = Host(comm)
        for row in asked:
            found = host.run({**row, "compute": row["computes"][comm.rank]})
            out.write(json.dumps(found) + "\n")
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
