"""A real vLLM under everything at once, for as long as one likes: `make soak SOAK_MINUTES=3 SEED=7`.

    setups     the model kinds: engines with few blocks and small chunks
    plan       what befalls the engine and its daemons when, drawn from a seed
    pool       prompts that share beginnings, and the outputs that they must give
    judge      whether an answer is right (pure)
    traffic    clients that repeat them, compare what they get, and now and then go away
    events     what carries a plan out: strikes on daemons, resets
    vitals     what processes hold: memory, descriptors, threads, shared memory
    limits     how long things may take
    growth     whether such a series grows (pure)
    remains    what must be left of it all at the end: nothing
    counters   what lookupd counted in all of its lives
    tally      what was counted, for people and as JSON
    run        one leg: an engine, its traffic, its events, its end
    __main__   the command

Every request must end in time and with right tokens, by the rules of `harness.compare` and `judge`: the checkpoints' weights are made so
that one wrong byte in the KV cache moves the log-probabilities. A run in which some kind of event never came is void, and
fails: it would have shown nothing.

The noise that judgement allows for is measured in the leg's own engine before its traffic: between batches, and between
decoding and the recomputation of what was decoded, as after a preemption. The summary's "moved" says how far right answers
were from their references, beside "noise".

`--plain` is the control: the same traffic without a connector. An answer that parts there too is vLLM's own doing. Of the
recurrent kind some did, at the same tokens of the same prompts with a connector and without: where a preempted request's
output was computed again as a prompt, and a sum's noise chose another expert for a token. So the soak's checkpoint has all
experts take every token. Then resumed outputs moved by at most 0.36 over 3,743 positions, not by 1.07 over 6,038, and all
tokens are judged, those after a preemption included.

The seed fixes what is decided: prompts, who goes away when, which daemon is struck when and how. What the machine makes of
it, which request meets which fault, is not repeatable.
"""
