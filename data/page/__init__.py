"""One look for every HTML page: text escaped in one place, charts as SVG, one style sheet."""
