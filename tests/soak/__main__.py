"""The command: `python -m soak --minutes 3 --seed 7`, from tests/.

Ends with 0 when all was right, 1 when something was wrong, 2 when the run is void because some kind of event never came,
and 3 when it could not be carried out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
import time
import traceback

from harness.engine import REPOSITORY

from . import plan
from .setups import SETUPS

CODES = {"right": 0, "wrong": 1, "void": 2, "broken": 3}


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 31)
    drawn = {None: None, "on": True, "off": False}
    legs = list(plan.legs(seed, options.minutes, tuple(SETUPS), options.kind, drawn[options.disk], drawn[options.slow]))
    if options.plain:
        legs = [leg.without_connector() for leg in legs]
    print(f"soak: seed {seed}, {options.minutes:g} minutes in {len(legs)} leg(s); again with: {_again(options, seed)}")
    summaries = []
    for leg in legs:
        print(f"leg {leg.seed}: {_described(leg)}, {leg.seconds:.0f} s\n  strikes: " + "; ".join(map(str, leg.strikes)), flush=True)
        print("  resets: " + "; ".join(map(str, leg.resets)), flush=True)
        summaries.append(_run(leg, options.faults))
    worst = max((s["verdict"] for s in summaries), key=lambda v: {"right": 0, "void": 1, "wrong": 2, "broken": 3}[v])
    _write(options.json, {"seed": seed, "minutes": options.minutes, "verdict": worst, "legs": summaries})
    for summary in summaries:
        if summary["verdict"] == "void":
            print(f"leg {summary['leg']} is void: never came: {', '.join(summary['missing'])}")
    print(f"soak: {worst}, seed {seed}; the whole of it in {options.json}")
    return CODES[worst]


def _described(leg: plan.Leg) -> str:
    return leg.kind + (", without a connector" if leg.plain else "") + (", a disk tier" if leg.disk else "") + (", slowed copies" if leg.slow else "")


def _run(leg: plan.Leg, faults: str) -> dict:
    from .run import run

    try:
        return run(leg, time.monotonic(), faults)
    except Exception:
        traceback.print_exc()
        return {"leg": leg.seed, "kind": leg.kind, "disk": leg.disk, "verdict": "broken", "error": traceback.format_exc()}


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3, help="how long, engines' starts included")
    parser.add_argument("--seed", type=int, default=0, help="what all is drawn from; 0 draws one")
    parser.add_argument("--kind", choices=sorted(SETUPS), help="the model kind; drawn without")
    parser.add_argument("--disk", choices=("on", "off"), help="a disk tier; drawn without")
    parser.add_argument("--slow", choices=("on", "off"), help="slowed copies, so that strikes meet them; drawn without")
    parser.add_argument("--plain", action="store_true", help="without a connector, as a control: what vLLM's own outputs do in this traffic")
    parser.add_argument("--faults", default="", help="defects of internal/faults, like ignore_cancel=1: to see that they are found")
    parser.add_argument("--json", type=pathlib.Path, default=REPOSITORY / "build" / "soak.json", help="where the summary goes")
    options = parser.parse_args(arguments)
    if not 1.5 <= options.minutes <= 24 * 60:
        parser.error("--minutes must be from 1.5, which an engine's start and its references leave little of, to a day's")
    return options


def _again(options: argparse.Namespace, seed: int) -> str:
    more = "".join(f" --{name} {value}" for name in ("kind", "disk", "slow", "faults") if (value := getattr(options, name)))
    more += " --plain" if options.plain else ""
    return f"make soak SOAK_MINUTES={options.minutes:g} SEED={seed}" + (f" SOAK='{more.strip()}'" if more else "")


def _write(path: pathlib.Path, value: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
