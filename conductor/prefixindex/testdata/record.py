"""Writes blockpool.jsonl: what vLLM's own block pool tells while requests come and go, and what it then has.

Run with vLLM's Python: record.py incremental|full > blockpool.MODE.jsonl; full is vLLM's kv_cache_report_mode. A line
is {"batch": hex} or {"prompt": text, "salt": text, "held": blocks}: how many of the prompt's blocks, from the first
on, the pool has. A letter of the prompt is a block: a has four times the token 1, b four times 70000.
"""

import json
import random
import sys
from types import SimpleNamespace

import msgspec
import vllm
from vllm.distributed.kv_events import KVEventBatch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool

BLOCK, BLOCKS, STEPS = 4, 40, 1000
MODE = {"incremental": False, "full": True}[sys.argv[1]]
TOKENS = {"a": 1, "b": 70000}
kv_cache_utils.init_none_hash(sha256)
pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=BLOCK, enable_kv_cache_events=True)
encoder = msgspec.msgpack.Encoder()
rng = random.Random(7)


def request(text, salt):
    """What the pool reads of a request."""
    tokens = [t for letter in text for t in [TOKENS[letter]] * BLOCK]
    made = SimpleNamespace(
        text=text, all_token_ids=tokens, lora_request=None, cache_salt=salt, mm_features=[], prompt_embeds=None, session_id=None,
        prompt_is_token_ids=None,
    )
    parent, hashes = kv_cache_utils.NONE_HASH, []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        extra, _ = kv_cache_utils.generate_block_hash_extra_keys(made, start, start + BLOCK, 0)
        parent = kv_cache_utils.hash_block_tokens(sha256, parent, tokens[start : start + BLOCK], extra)
        hashes.append(parent)
    made.block_hashes = hashes
    return made


def prompt():
    # Few different blocks, so that prompts share beginnings.
    return "".join(rng.choices("ab", k=rng.randrange(1, 7))), rng.choice([None, None, "salt"])


def held(made):
    n = 0
    while n < len(made.block_hashes) and pool.get_cached_block(made.block_hashes[n], [0]):
        n += 1
    return n


def say(**line):
    sys.stdout.write(json.dumps(line) + "\n")


say(vllm=vllm.__version__, seed=7)
running = []
for step in range(STEPS):
    action = rng.random()
    if action < 0.5:
        made = request(*prompt())
        whole = len(made.block_hashes)
        # Most requests reuse what is there; some do not, and hold copies.
        reused = held(made) if MODE or rng.random() < 0.7 else 0
        hit = [pool.get_cached_block(h, [0])[0] for h in made.block_hashes[:reused]]
        if pool.get_num_free_blocks() >= whole:
            pool.touch(hit)
            if whole - reused <= pool.get_num_free_blocks():
                if MODE:
                    pool.emit_cached_block_events(made, reused, BLOCK, 0)
                blocks = hit + pool.get_new_blocks(whole - reused)
                done = rng.randrange(reused, whole + 1)  # a part in this step, the rest in the next one
                pool.cache_full_blocks(made, blocks, reused, done, BLOCK, 0)
                running.append((made, blocks, done))
            else:
                pool.free_blocks(reversed(hit))
    elif running and action < 0.6:
        made, blocks, done = running.pop(rng.randrange(len(running)))
        pool.cache_full_blocks(made, blocks, done, len(blocks), BLOCK, 0)
        running.append((made, blocks, len(blocks)))
    elif running:
        made, blocks, _ = running.pop(rng.randrange(len(running)))
        pool.free_blocks(reversed(blocks))
    if step % 400 == 399:
        while running:
            pool.free_blocks(reversed(running.pop()[1]))
        assert pool.reset_prefix_cache()
    events = pool.take_events()
    if events:
        say(batch=encoder.encode(KVEventBatch(ts=float(step), events=events, data_parallel_rank=0)).hex())
    made = request(*prompt())
    say(prompt=made.text, salt=made.cache_salt or "", held=held(made))
