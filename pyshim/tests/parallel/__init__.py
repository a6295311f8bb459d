"""Engines of many ranks that vLLM's CPU backend does not run: everything real but the model.

``engine`` steps vLLM's own scheduler with our connector in it. Every rank has our connector's worker role, a
``mooncake-worker`` of its own and KV memory that vLLM's own code laid out (``cache``); a made-up forward pass writes
into it what tells layer, head, token and all tokens before. ``layouts`` are the engines, ``story`` is what happens to
them, ``recording`` are the step facts as vLLM's scheduler decides them when the in-tree connector's rules say what is
found: ``steps.json``, made by ``scripts/record_steps.py``.
"""
