"""Step facts: what vLLM's scheduler decides for each layout when the in-tree connector's rules say what is found.

Block tables, hashes, and how many tokens are computed and loaded, step by step. ``scripts/record_steps.py`` writes
them anew, for a new vLLM or another story.
"""

import json
import tempfile
from pathlib import Path

from .engine import Engine
from .layouts import LAYOUTS, configure
from .rule import Rule
from .story import Story

STEPS = Path(__file__).with_name("steps.json")
BUDGET = 64

_TRANSFER = {
    "kv_connector": "RuleConnector",
    "kv_connector_module_path": "parallel.rule",
    "kv_role": "kv_both",
}


def record(layout, path) -> dict[str, list]:
    """The facts of one layout's story."""
    configured = configure(layout, path, BUDGET, _TRANSFER)
    rule, facts = Rule(layout, configured), {}
    for part in ("store", "load"):
        engine = Engine(layout, configured, [])
        engine.connector.rule = rule
        getattr(Story(configured.block_sizes[0]), part)(engine)
        facts[part] = engine.facts
        engine.shutdown()
    return facts


def write() -> None:
    """Record all layouts."""
    with tempfile.TemporaryDirectory() as path:
        facts = {layout.name: record(layout, Path(path)) for layout in LAYOUTS}
    lines = []
    for name, parts in facts.items():
        rows = {part: ",\n".join(json.dumps(fact, separators=(",", ":")) for fact in steps) for part, steps in parts.items()}
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(f'"{part}": [\n{text}\n]' for part, text in rows.items()) + "\n}")
    STEPS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def recorded() -> dict:
    return json.loads(STEPS.read_text())
