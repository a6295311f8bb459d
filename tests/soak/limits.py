"""How long things may take before they count as hung."""

# Within this a request must have ended. The longest fault lasts a few seconds, and so do the deadlines of a job; on two
# cores that others use as well a dozen requests that are preempted and computed again take the rest.
REQUEST_LIMIT_S = 300.0
# Until an engine that is asked for nothing more holds no block: the last request may take as long as any, and the jobs
# behind it their deadlines.
DRAIN_LIMIT_S = REQUEST_LIMIT_S + 30.0
