"""Our scheduler role against the in-tree connector's, step by step, inside vLLM's real scheduler.

``pair`` is a KV connector with both as children: one leads (the scheduler gets
its answers, its references keep blocks), the other is shown the same calls.
``engine`` steps the scheduler with made-up model outputs and ``ranks``, made-up
workers; ``plan`` draws what happens. ``compare`` holds the two against each
other after every step. What may differ is named in ``rules``; anything else
fails.
"""
