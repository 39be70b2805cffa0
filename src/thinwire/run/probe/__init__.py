"""`thinwire probe`: measure the real machines, and describe them as a cluster."""

from thinwire.run.probe.fit import Fitted, fit
from thinwire.run.probe.report import Survey
from thinwire.run.probe.run import Files, layers_beside, probe, refusal_of
from thinwire.run.probe.survey import Request, Watcher, survey

__all__ = [
    "Files",
    "Fitted",
    "Request",
    "Survey",
    "Watcher",
    "fit",
    "layers_beside",
    "probe",
    "refusal_of",
    "survey",
]
