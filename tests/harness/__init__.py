"""Everything around a real vLLM that the end-to-end tests, the demo and the benchmarks share.

    corpus       real text, and prompts cut from it
    checkpoint   a tiny Llama in safetensors, with weights for which the KV cache matters, and its tokenizer
    engine       one `vllm serve` process: start, wait, reset, kill
    nursery      engines as forks of a process that has imported vLLM: a tenth of the time
    client       the engine's OpenAI API and its metrics
    daemons      the daemons of one runtime directory: find, stop, continue, kill
    segment      the store's shared memory, seen from outside, to damage it on purpose

Nothing here is shipped. Only checkpoint needs packages beyond the standard library; they come with vLLM.
"""
