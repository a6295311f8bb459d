"""What may differ between the two connectors, and why. Each use of a rule is counted.

The first group are defects or gaps of the in-tree connector (vLLM 0.32) that
ours does not share; the second are choices of ours that change no stored byte.
"""

FAILED_LOAD = "a request whose load failed is computed: the in-tree connector asks and offers the same hit again"
READMITTED = (
    "a request that a reset preempts and the same step admits again: the in-tree connector drops what it just "
    "noted about it, loses its load (the request then waits for ever) or raises"
)
DRAFTS_LAG = (
    "what is decoded with drafts: the in-tree connector counts at most the tokens scheduled in a step, so it falls "
    "behind when drafts were accepted and fewer are drafted next"
)
ENDED_BY_RESET = (
    "a run that is under way at a reset is saved no more: the in-tree connector goes on with what was computed before"
)

NOTHING_LEFT = "where less than a hit's unit is left beyond the engine's own cache nothing is asked"
EMPTY_JOB = "a job without chunks is not sent: the in-tree connector sends it, its ranks do nothing"
LATE_RETIREMENT = "a request whose tail is only sent now is retired one step later"
HELD_LONGER = "blocks of an acknowledged job are held until the run's older jobs are acknowledged"
HELD_LESS = "only blocks that a job may read are held: the in-tree connector holds the whole table"
SAVED_BY_ALL = "what every rank has saved is not named again: null blocks stand there"

ALL = {name: value for name, value in globals().items() if name.isupper()}
