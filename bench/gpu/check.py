"""All checks of the GPU path, by one command. See docs/gpu.md.

    python bench/gpu/check.py [--json FILE]         on a machine with a GPU and PyTorch
    python bench/gpu/check.py --double              anywhere: the same over the driver's double, times not judged

Exit code 0: everything is as it should be; 1: something is not.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "pyshim")]

import checks  # noqa: E402
from devices import Double, Gpu  # noqa: E402
from engine import Daemons  # noqa: E402
from shapes import all_shapes  # noqa: E402


def run(device, daemons: Daemons, arguments: list[str]):
    """The findings, each as soon as it is there."""
    shapes = all_shapes()
    child = [sys.executable, __file__, *arguments, "--directory", daemons.directory]
    for shape in shapes:
        yield checks.bytes_are_equal(device, daemons.directory, shape)
    yield checks.sleep_and_wake(device, daemons.directory, shapes[0])
    yield checks.event_cost(device)
    yield checks.the_engine_writes_first(device, daemons.directory, shapes[0])
    for shape in shapes:
        yield checks.bandwidth(device, daemons, shape)
    for shape in (shapes[0], next(shape for shape in shapes if shape.layout == "tokens")):  # large pieces and small ones
        yield checks.matmul_slowdown(device, daemons, shape)
    yield checks.killed_while_computing(device, daemons, child, shapes[0])
    yield checks.kills(device, daemons, child, shapes[0])
    if not device.real:
        yield checks.no_faults(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs", type=Path, default=ROOT / "bin", help="where mooncake-lookupd and mooncake-worker are"
    )
    parser.add_argument("--store", default="8GiB", help="the store's memory")
    parser.add_argument("--json", type=Path, help="write the findings to a file")
    parser.add_argument("--double", action="store_true", help="use the driver's double in place of a GPU")
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store-as", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu", dir=options.directory) as directory:
        device = Double(Path(directory)) if options.double else Gpu()
        if options.child:
            checks.child(device, options.directory, all_shapes()[0], options.store_as, options.wait)
            return 0
        daemons = Daemons(
            options.programs, directory, "512MiB" if options.double else options.store, device.environment
        )
        arguments = ["--programs", str(options.programs), *(["--double"] if options.double else [])]
        found = []
        try:
            for finding in run(device, daemons, arguments):
                found.append(vars(finding))
                print("ok  " if finding.ok else "FAIL", finding.check, finding.figures or "", flush=True)
        finally:
            daemons.close()
            if not all(finding["ok"] for finding in found) or not found:
                print(daemons.log()[-4000:], file=sys.stderr)
        if options.json:
            options.json.write_text(json.dumps({"device": device.name, "findings": found}, indent=1) + "\n")
    return 0 if all(finding["ok"] for finding in found) else 1


if __name__ == "__main__":
    sys.exit(main())
