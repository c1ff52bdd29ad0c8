"""What the HTML pages share: templates of this package with autoescape, and JSON that may stand in a page."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup


def page_environment() -> jinja2.Environment:
    """Jinja2 for the templates of this package: everything is escaped, an unknown name is an error."""
    folder = files("llm_sampler.studies") / "templates"
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def script_json(data: Any, *, sort_keys: bool = False) -> Markup:
    """Data as JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=sort_keys)
    return Markup(text.replace("<", "\\u003c"))
