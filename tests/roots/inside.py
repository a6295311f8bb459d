"""One engine in a root without development packages: cold, then hits from the store alone. Prints one line of JSON.

Run by the tests of this directory with the interpreter of the root, where
nothing is installed but the wheel of mooncake-sidecar; vLLM is mounted.

    python inside.py MODEL [EXTRA_CONFIG as JSON]
"""

import json
import os
import shutil
import sys

PROMPT_TOKENS = 1200


def main() -> None:
    from vllm import LLM, SamplingParams

    connector = {
        "kv_connector": "MooncakeSidecarConnector",
        "kv_connector_module_path": "mooncake_sidecar.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }
    if len(sys.argv) > 2:
        connector["kv_connector_extra_config"] = json.loads(sys.argv[2])
    llm = LLM(
        model=sys.argv[1], enforce_eager=True, dtype="float32", max_model_len=4096, kv_transfer_config=connector, seed=0
    )
    prompt = {"prompt_token_ids": [7 + i * 31 % 997 for i in range(PROMPT_TOKENS)]}
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    def ask() -> tuple[int, list[int]]:
        answer = llm.generate([prompt], sampling, use_tqdm=False)[0]
        return answer.num_cached_tokens or 0, list(answer.outputs[0].token_ids)

    cold = ask()
    # Asking again stores what is left; then the engine's own cache is emptied, and only the store has the prefix.
    ask()
    if not llm.reset_prefix_cache():
        sys.exit("the engine's own cache could not be emptied")
    warm = ask()
    import mooncake_sidecar

    print(
        json.dumps(
            {
                "cold": cold,
                "warm": warm,
                "shim": os.path.dirname(mooncake_sidecar.__file__),
                "compiler": next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None),
            }
        )
    )


if __name__ == "__main__":
    main()
