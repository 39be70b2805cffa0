"""The run record and what is made of it: comparison, verdict, table, page, trace, live display."""

from thinwire.report.compare import Comparison, MethodSummary, Spread, Target, compare, parse_target
from thinwire.report.html import report_html
from thinwire.report.live import LiveView
from thinwire.report.progress import RunView
from thinwire.report.reader import Follower, Record, RunRecord, read_record
from thinwire.report.record import SCHEMA, End, Eval, Header, Line, Note, Run, Span, Step
from thinwire.report.recorder import Recorder
from thinwire.report.render import Rendered, render
from thinwire.report.table import comparison_table
from thinwire.report.timeline import write_trace
from thinwire.report.verdict import remarks, verdict

__all__ = [
    "SCHEMA",
    "Comparison",
    "End",
    "Eval",
    "Follower",
    "Header",
    "Line",
    "LiveView",
    "MethodSummary",
    "Note",
    "Record",
    "Recorder",
    "Rendered",
    "Run",
    "RunRecord",
    "RunView",
    "Span",
    "Spread",
    "Step",
    "Target",
    "compare",
    "comparison_table",
    "parse_target",
    "read_record",
    "remarks",
    "render",
    "report_html",
    "verdict",
    "write_trace",
]
