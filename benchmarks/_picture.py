"""Charts of the reports as pictures of their own."""

from __future__ import annotations

from importlib import resources

from thinwire.report.charts import Chart

__all__ = ["standalone"]


def standalone(chart: Chart) -> str:
    """An SVG file's text: with the style that a report's page would give, and its letters."""
    css = resources.files("thinwire.report").joinpath("templates/page.css").read_text()
    style = f"<style>{css} text {{ font-family: system-ui, sans-serif; }}</style>"
    svg = chart.svg.replace(">", f">{style}", 1)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
