"""How much of LAGS's exchange hides behind the backward pass, of what could hide there.

    sudo python benchmarks/overlap.py                 eight minutes
    sudo python benchmarks/overlap.py --json rows.json

Four hosts behind shaped links train by the method's own text, once as it is and once with every
message held back until the backward pass has ended. Forward and backward are emulated: hosts sleep
as long as they would take, layer by layer, and stand still while a gradient's entries are chosen,
as on one processor. Choosing, coding, sending and merging are real.

The time from the end of all hosts' backward passes to that of the last message, without overlap,
is the communication t_c. With t_f and t_b for forward and backward, at most min(t_c, t_b) can be
hidden, and no step gets faster by more than S_max = 1 + min(t_c, t_b) / (t_f + max(t_c, t_b)) (LAGS
paper; choosing left out). Hidden is what a step takes less with overlap than without.

A step takes from where the last host was through the one before to where the last is through it:
hosts that are ahead wait, and their own steps would be counted as longer than the run's. The two
forms take turns; each figure is the median over the turns of the medians over their steps.

Target: 80 % of what can hide is hidden. Needs Linux, root and iproute2. Exit code 1 where a target
is missed, 2 where nothing can be measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from _wire_models import FORWARD
from fidelity import run_hosts
from netns import Lab, why_not

HOSTS, TARGET, WARMUP, TURNS = 4, 0.8, 2, 3


@dataclass(frozen=True)
class Case:
    """A situation.

    Args:
        rate: of every link.
        model: whose layers.
        density: of every tensor.
        compute: seconds of forward and backward.
    """

    rate: str
    model: str
    density: float
    compute: float


CASES = (
    Case("100mbit", "resnet50", 0.001, 1.0),
    Case("100mbit", "resnet50", 0.005, 1.0),
    Case("100mbit", "resnet50", 0.005, 3.0),
    Case("1gbit", "resnet50", 0.01, 1.0),
)


def rows_of(case: Case, steps: int) -> list[dict[str, Any]]:
    """Both forms by turns."""
    return [
        {
            "id": number,
            "kind": "ours",
            "method": f"lags:density={case.density}",
            "model": case.model,
            "real": False,
            "serial": True,
            "computes": [case.compute] * HOSTS,
            "warmup": WARMUP,
            "steps": steps,
            "late": number % 2 == 1,
        }
        for number in range(2 * TURNS)
    ]


def step_time(hosts: Sequence[dict[str, Any]]) -> float:
    """Median seconds from the end of a step on the last host to the end of the next one there."""
    ends = [max(at) for at in zip(*(host["ended"] for host in hosts), strict=True)]
    return statistics.median(b - a for a, b in itertools.pairwise(ends))


def compared(case: Case, hosts: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """A case's figures, from its rows on every host, the two forms by turns."""
    rows = list(zip(*hosts, strict=True))
    steps, lates = ([step_time(row) for row in rows[form::2]] for form in (0, 1))
    took = [max(at) for row in rows[1::2] for at in zip(*(h["sending"] for h in row), strict=True)]
    sending = statistics.median(took)
    forward = FORWARD * case.compute
    backward = case.compute - forward
    can = min(sending, backward)
    hidden = [(late - step) / can for step, late in zip(steps, lates, strict=True)]
    step, late = statistics.median(steps), statistics.median(lates)
    return {
        **asdict(case),
        "step": step,
        "without_overlap": late,
        "communication": sending,
        "backward": backward,
        "hidden": statistics.median(hidden),
        "hidden_by_turn": hidden,
        "s_max": 1 + can / (forward + max(sending, backward)),
        "faster": late / step,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    title = f"LAGS, {HOSTS} hosts"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 0, 0, 1))
    for heading in ("link", "density", "t_b, s", "t_c, s", "in turn, s", "at once, s", "faster",
                    "S_max", "hidden", "by turn"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "link" else "right")
    for row in rows:
        times = [row[key] for key in ("backward", "communication", "without_overlap", "step")]
        table.add_row(
            row["rate"], f"{row['density']:g}", *(f"{t:.3f}" for t in times),
            f"{row['faster']:.2f}", f"{row['s_max']:.2f}", f"{100 * row['hidden']:.0f} %",
            " ".join(f"{100 * share:.0f}" for share in sorted(row["hidden_by_turn"])),
        )  # fmt: skip
    Console().print(table)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5, help="that are measured, each turn")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"overlap: {reason}; nothing was measured", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the labs are to be taken down
    print(f"{os.cpu_count()} cores, {platform.platform()}, load {os.getloadavg()[0]:.1f}")
    results: list[dict[str, Any]] = []
    for case in CASES:
        with Lab(HOSTS, case.rate) as lab, tempfile.TemporaryDirectory() as folder:
            hosts = run_hosts(lab, rows_of(case, options.steps), Path(folder))
            if any(len(host) < 2 * TURNS for host in hosts):
                log = Path(folder, "hosts.log").read_text()
                raise RuntimeError(f"the hosts stopped early:\n{log[-2000:]}")
        results.append(compared(case, hosts))
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    missed = [row for row in results if row["hidden"] < TARGET]
    print(f"target (80 % of what can hide): {'missed' if missed else 'met'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
