"""`thinwire doctor`: is this group of machines fit for a run, and what should be mended first?"""

from thinwire.run.doctor.examine import Request, examine
from thinwire.run.doctor.local import stuck
from thinwire.run.doctor.render import show, write_json
from thinwire.run.doctor.report import Examination, Finding
from thinwire.run.doctor.start import start_processes

__all__ = [
    "Examination",
    "Finding",
    "Request",
    "examine",
    "show",
    "start_processes",
    "stuck",
    "write_json",
]
