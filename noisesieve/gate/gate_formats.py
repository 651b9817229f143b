"""The formats of a gate's result by name."""

from __future__ import annotations

from noisesieve.gate import junit, markdown, sarif

WRITERS = {"junit": junit.render, "sarif": sarif.render, "markdown": markdown.render}
