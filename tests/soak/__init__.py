"""A real vLLM under everything at once, for as long as one likes: `make soak SOAK_MINUTES=3 SEED=7`.

    setups     the model kinds: engines with few blocks and small chunks
    plan       what befalls the engine and its daemons when, drawn from a seed
    pool       prompts that share beginnings, and the outputs that they must give
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

Every request must end in time and with right tokens, by the rule of `harness.compare`: the checkpoints' weights are made so
that one wrong byte in the KV cache moves the log-probabilities. A run in which some kind of event never came is void, and
fails: it would have shown nothing.

Open: of a model with recurrent states only the first token is judged (`setups.Setup.judged_tokens`), and an output that parts
later is counted as "parted later". With seed 3 one answer in 1,501 parted at token 38, where the right token led by 0.75 and
three times less is what the noise seen in references allows. A state that was wrong would show at the first token, which it
did not; that vLLM's own batches part outputs as often has not been shown. `--plain` is the control: the same traffic without
a connector, whose "parted later" of all "done" is to be compared with that of a run with one, over some thousand answers each.

The seed fixes what is decided: prompts, who goes away when, which daemon is struck when and how. What the machine makes of
it, which request meets which fault, is not repeatable.
"""
