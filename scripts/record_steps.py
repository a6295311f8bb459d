#!/usr/bin/env python3
"""Records what vLLM's scheduler decides for engines of many ranks: pyshim/tests/parallel/steps.json.

Run it with the environment that the tests run with, after a change of vLLM or of the story, and look at what differs.
"""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "pyshim" / "tests"), str(REPOSITORY / "pyshim")]

from parallel import recording  # noqa: E402

if __name__ == "__main__":
    recording.write()
