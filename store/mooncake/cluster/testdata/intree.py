"""What vLLM's in-tree connector makes of configuration files: intree.json, on stdout.

Run with an interpreter that has vLLM: python -I intree.py. The module is loaded
by its path, for it needs none of vLLM.
"""

import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
import types

BASE = {"metadata_server": "http://10.0.0.1:8080/metadata", "master_server_address": "10.0.0.1:50051", "protocol": "tcp"}


def with_base(**fields):
    return json.dumps(BASE | fields)


CASES = [
    json.dumps(BASE),
    with_base(device_name="mlx5_0,mlx5_1", global_segment_size=1 << 30, local_buffer_size=256 << 20),
    json.dumps({"metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}),
    with_base(mode="standalone-store", global_segment_size=0),
    with_base(mode="embedded", global_segment_size="4GB"),
    with_base(global_segment_size=" 1.5 gb "),
    with_base(global_segment_size="512MB", local_buffer_size="64kb"),
    with_base(global_segment_size="100B"),
    with_base(global_segment_size="100"),
    with_base(global_segment_size=1e9),
    with_base(global_segment_size=1234.9),
    with_base(global_segment_size="0.1KB"),
    with_base(tenant_id=None),
    with_base(tenant_id="  "),
    with_base(tenant_id=" acme "),
    with_base(enable_offload=True),
    with_base(enable_offload=0),
    with_base(enable_offload="false"),
    with_base(enable_offload=None),
    with_base(local_hostname="localhost", enable_ssd_offload=False, tcp_port=17),
    with_base(global_segment_size="4G"),
    with_base(global_segment_size="4GiB"),
    with_base(global_segment_size="1.2.3MB"),
    with_base(global_segment_size="."),
    with_base(global_segment_size=""),
    with_base(global_segment_size="-1GB"),
    with_base(global_segment_size=None),
    with_base(global_segment_size=[1]),
    with_base(global_segment_size=0),
    with_base(local_buffer_size=0),
    with_base(local_buffer_size=-5),
    with_base(mode="standalone-store"),
    with_base(mode="standalone-store", global_segment_size="1GB"),
    with_base(mode="remote"),
    with_base(tenant_id=7),
    "{",
    "[]",
    "",
    json.dumps(BASE) + "x",
]


def main():
    root = importlib.util.find_spec("vllm").submodule_search_locations[0]
    try:
        import regex  # noqa: F401 - what the module imports
    except ImportError:
        import re

        sys.modules["regex"] = types.ModuleType("regex")
        sys.modules["regex"].match = re.match
    spec = importlib.util.spec_from_file_location("intree", os.path.join(root, "distributed", "mooncake_store.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["intree"] = module
    spec.loader.exec_module(module)
    results = []
    for text in CASES:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            try:
                read = dataclasses.asdict(module.MooncakeStoreConfig.from_file(file.name))
                results.append({"file": text, "read": read})
            except Exception as error:  # noqa: BLE001 - that it fails is the result
                results.append({"file": text, "error": type(error).__name__})
    json.dump(results, sys.stdout, indent=1)
    print()


main()
