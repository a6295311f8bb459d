# mooncake-sidecar. `make help` lists the targets; CI calls nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION   ?= $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' pyshim/mooncake_sidecar/__init__.py)
LDFLAGS   := -X github.com/mooncake-sidecar/sidecar/internal/version.Version=$(VERSION)
GOFLAGS_  := -trimpath -ldflags '$(LDFLAGS)'
BINARIES  := mooncake-lookupd mooncake-worker mooncake-conductor mooncake-bench
GOLANGCI_LINT_VERSION := v2.12.2
TOOLS     := build/tools/bin
PYTHON     = $(shell scripts/setup.sh --print-python)
PYTEST     = $(PYTHON) -m pytest -q -p no:cacheprovider

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: system ## build the daemons and tools into bin/
	@mkdir -p bin
	@for b in $(BINARIES); do echo "go build $$b"; go build $(GOFLAGS_) -o bin/$$b ./cmd/$$b || exit 1; done

# The same daemons with fault injection compiled in; only tests use them.
.PHONY: build-faults
build-faults: system
	@mkdir -p build/faults
	@for b in mooncake-lookupd mooncake-worker; do go build -tags faults $(GOFLAGS_) -o build/faults/$$b ./cmd/$$b || exit 1; done

.PHONY: wheel
wheel: ## the wheel with shim and daemons for any glibc since 2.17, in build/dist/
	python3 deploy/wheel/build.py

.PHONY: system
system:
	@scripts/setup.sh --system

.PHONY: setup
setup: ## install libzmq and the pinned vLLM environment (.venv)
	@scripts/setup.sh

.PHONY: setup-peers
setup-peers:
	@scripts/setup.sh --with-peers

.PHONY: setup-bench
setup-bench: ## also install LMCache, in an environment of its own (build/peers)
	@scripts/setup.sh --with-bench

.PHONY: demo
demo: setup build ## vLLM with our store: cold, warm, reset, killed and restarted; writes build/demo.json
	$(PYTHON) scripts/demo.py

.PHONY: cluster-demo
cluster-demo: setup-peers build ## engines of two nodes and an in-tree one share a real Mooncake cluster; writes build/cluster.json
	$(PYTHON) scripts/cluster_demo.py

.PHONY: test
test: setup-peers build build-faults ## everything CI runs, vLLM included
	@scripts/prometheus.sh >/dev/null
	MOONCAKE_SIDECAR_PROMETHEUS=$$(scripts/prometheus.sh) MOONCAKE_SIDECAR_PYTHON=$(PYTHON) $(MAKE) --no-print-directory test-go GOTEST='-skip ^TestAgainstVLLM'
	$(MAKE) --no-print-directory test-race
	$(MAKE) --no-print-directory -j2 --output-sync=target test-chaos test-beside-chaos
	$(MAKE) --no-print-directory test-end-to-end
	$(PYTEST) tests/soak tests/cluster tests/conductor
	$(MAKE) --no-print-directory soak SOAK_MINUTES=3 SEED=7 SOAK='--kind sliding --disk off --slow on'

.PHONY: test-wheel-root
test-wheel-root: setup-peers ## the wheel in roots of older distributions, the units under a real systemd (root only)
	$(PYTEST) tests/roots

.PHONY: test-fast
test-fast: system ## Go tests and house rules, without vLLM
	$(MAKE) --no-print-directory test-go

# From NVIDIA's packages, 44 MB, fetched once.
CUDA_PACKAGES := nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79
.PHONY: test-cuda
test-cuda: system ## the GPU kernel by NVIDIA's assembler and our calls by its cuda.h; needs no GPU
	@test -e build/cuda/complete || { python3 -m pip install --quiet --no-deps --upgrade --target build/cuda $(CUDA_PACKAGES) && touch build/cuda/complete; }
	PTXAS=$(CURDIR)/build/cuda/nvidia/cuda_nvcc/bin/ptxas CUDA_INCLUDE=$(CURDIR)/build/cuda/nvidia/cuda_runtime/include \
	  go test -v -count=1 -run '^(TestTheKernelAssembles|TestTheDriversHeaderAgrees)$$' ./internal/cuda ./internal/cudadev

.PHONY: test-conductor
test-conductor: setup-peers build ## the conductor against vLLM's block pool, publisher and hashes
	MOONCAKE_SIDECAR_PYTHON=$(PYTHON) go test -count=1 ./tests/conductor/...
	$(PYTEST) tests/conductor

# Three engines at a time: it wants the machine to itself.
.PHONY: test-conductor-engines
test-conductor-engines: setup-peers build ## mooncake-conductor serve in front of three real engines
	$(PYTEST) -s tests/conductor/engines

.PHONY: test-python
test-python: test-upstream
	$(PYTEST) pyshim/tests

# Keeps one core busy for about as long as test-chaos does: make test runs the two at once.
.PHONY: test-beside-chaos
test-beside-chaos:
	$(MAKE) --no-print-directory test-python
	$(MAKE) --no-print-directory test-rules
	$(PYTEST) tests/packaging

# Files go to processes whole, for engines are shared within a file; conftest.py has the longest ones begin.
# An engine computes on one core here, and a third of the time tests wait for deadlines.
E2E_PROCESSES ?= 2
.PHONY: test-end-to-end
test-end-to-end: setup-peers build build-faults ## the whole thing with a real vLLM; E2E_PROCESSES=0 for one after the other
	$(PYTEST) -n $(E2E_PROCESSES) --dist loadfile --no-loadscope-reorder --durations=25 -m 'not alone' tests/e2e
	$(PYTEST) -m alone tests/e2e

# Mooncake's public traces, where they are at hand; their tests are skipped otherwise.
TRACES ?= $(wildcard ../shared/traces)

# With MOONCAKE_SIDECAR_PYTHON also what compares with vLLM.
.PHONY: test-go
test-go: system
	go vet ./...
	MOONCAKE_SIDECAR_TRACES=$(abspath $(TRACES)) go test -timeout 30m $(GOTEST) ./...

# With the race detector random tests draw a few of the seeds that they draw without it.
RACE ?= -short
.PHONY: test-race
test-race: system
	go test -timeout 30m -race $(RACE) ./conductor/... ./connector/... ./lookupd/... ./store/... ./worker/... ./internal/...

# CHAOS is how long random operations on the store are compared with its model,
# SEED the first run's; 0 draws one.
CHAOS ?= 1m
SEED ?= 1
.PHONY: test-chaos
test-chaos: system ## the store under random operations and crashes, lookupd under kill -9
	go test -count=1 -v -timeout 60m -run '^TestMetamorphic' ./store/embedded -metamorphic.for=$(CHAOS) -metamorphic.first=$(SEED)
	go test -count=1 -v -timeout 60m -run '^TestKilledUnderLoad$$' ./internal/daemon -kills=200

# The coordinator against the rules of the vLLM that is installed.
.PHONY: test-rules
test-rules:
	@mkdir -p build
	MOONCAKE_SIDECAR_PYTHON=$(PYTHON) go test -v -count=1 -timeout 60m -run '^(TestAgainstVLLM|TestOracle|TestGolden)$$' \
	  -coverpkg=./coordinator -coverprofile=build/coordinator.cover ./coordinator ./coordinator/vllmdiff
	@go tool cover -func=build/coordinator.cover | awk 'BEGIN { low = 1 } \
	  /^total:/ { print "coordinator: " $$3 " of its statements are reached by compared cases, at least 98% are wanted"; low = $$3 + 0 < 98 } END { exit low }'

# All Go tests that need vLLM or Mooncake, without the others; make test has them in test-go.
.PHONY: test-vllm-rules
test-vllm-rules: test-rules
	MOONCAKE_SIDECAR_PYTHON=$(PYTHON) go test -count=1 -skip "^TestAgainstVLLM$$" ./coordinator/... ./internal/kv/... ./lookupd/... ./internal/wire/... ./internal/daemon/... ./store/mooncake/...

# The soak's kind, disk tier and slowed copies are drawn from SEED unless SOAK says otherwise: SOAK='--kind sliding --disk off'.
SOAK_MINUTES ?= 3
.PHONY: soak
soak: setup-peers build build-faults ## vLLM under traffic, aborts, preemptions, resets and struck daemons, for SOAK_MINUTES
	cd tests && $(PYTHON) -m soak --minutes $(SOAK_MINUTES) --seed $(SEED) $(SOAK)

.PHONY: test-upstream
test-upstream: setup-peers build ## vLLM's own connector tests against our code, and the table of them
	$(PYTHON) tests/upstream/run.py
	$(PYTEST) tests/upstream/test_table.py

.PHONY: test-nightly
test-nightly: setup-peers build build-faults ## longer runs: more cases, fuzzing, repeated fault tests
	$(MAKE) --no-print-directory test
	MOONCAKE_SIDECAR_PYTHON=$(PYTHON) MOONCAKE_SIDECAR_DIFF_CASES=200000 go test -v -count=1 -timeout 60m -run '^TestAgainstVLLM$$' ./coordinator/vllmdiff
	MOONCAKE_SIDECAR_STEP_SEED=1000 MOONCAKE_SIDECAR_STEP_CASES=4400 $(PYTEST) pyshim/tests/differential/test_same_steps.py
	MOONCAKE_SIDECAR_LAYOUTS_SEED=$(strip $(shell od -An -N2 -tu2 /dev/urandom)) MOONCAKE_SIDECAR_LAYOUTS=150 $(PYTEST) pyshim/tests/parallel/test_random_layouts.py
	MOONCAKE_SIDECAR_NIGHTLY=1 $(PYTEST) tests/e2e/test_ranks.py tests/e2e/test_safe.py
	$(MAKE) --no-print-directory test-race RACE=
	go test -rapid.checks=2000 -timeout 60m ./store/embedded ./internal/index ./internal/evict
	$(MAKE) --no-print-directory test-chaos CHAOS=10m SEED=0
	go test -count=1 -race -timeout 60m -run '^TestMetamorphic' ./store/embedded -metamorphic.for=5m -metamorphic.first=0
	go test -count=1 -timeout 60m -run '^TestMetamorphicTier' ./store/embedded -metamorphic.for=20m -metamorphic.first=0
	go test -count=1 -tags mutants -timeout 120m -run '^TestMutants$$' ./store/embedded
	scripts/fuzz.sh 60s
	$(MAKE) --no-print-directory soak SOAK_MINUTES=60 SEED=0
	$(MAKE) --no-print-directory test-wheel-root
	$(MAKE) --no-print-directory test-conductor-engines
	$(MAKE) --no-print-directory test-cuda

# BENCH is quick (a quarter of an hour at most on two cores) or full (hours); ONLY names
# benchmarks: ONLY=lookup,hooks. A failed one does not end the rest.
BENCH ?= quick
ONLY  ?=
.PHONY: bench
bench: setup-peers build ## all benchmarks, one report: build/bench/report.html; BENCH=quick|full, ONLY=NAME,...
	bin/mooncake-bench suite --budget $(BENCH) --only '$(ONLY)' --python $(PYTHON) --traces '$(TRACES)' --out build/bench

# REPLAY passes flags: REPLAY='--rounds 5 --limit 1000'. Without TRACES a workload is drawn.
.PHONY: bench-replay
bench-replay: setup-peers build ## 300 requests against real engines, with ours, without, in-tree, in rounds; build/bench/replay
	$(PYTHON) bench/replay/live.py --out build/bench/replay $(if $(TRACES),--trace $(TRACES)/conversation_trace.jsonl) $(REPLAY)

# COMPARE passes flags, for example COMPARE='--with null,intree,ours --parts warm'.
.PHONY: bench-compare
bench-compare: setup-bench build ## this store, the in-tree one and LMCache side by side, for hours; build/bench/compare.json
	MOONCAKE_SIDECAR_PYTHON=$(PYTHON) bin/mooncake-bench compare $(COMPARE)

# INDEXER passes flags, for example INDEXER='--rounds 3 --full 1000000'.
.PHONY: bench-indexer
bench-indexer: build ## the index of KV-cache events beside llm-d-kv-cache and dynamo.indexer; build/bench/indexer.*.txt
	@scripts/setup.sh --with-indexers
	@mkdir -p build/bench
	bin/mooncake-bench indexer --llmd build/peers/llmd $(INDEXER) | tee build/bench/indexer.library.txt
	bin/mooncake-bench indexer --conductor bin/mooncake-conductor --dynamo build/peers/dynamo/bin/python --threads 2 $(INDEXER) | tee build/bench/indexer.service.txt

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## golangci-lint and the house rules
	$(TOOLS)/golangci-lint run ./...
	go test ./internal/lint

$(TOOLS)/golangci-lint:
	@mkdir -p $(TOOLS)
	@echo "installing golangci-lint $(GOLANGCI_LINT_VERSION) into $(TOOLS)"
	@GOBIN=$(abspath $(TOOLS)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: generate
generate: ## generate the gRPC code anew (needs protoc and its Go plugins)
	protoc --go_out=. --go_opt=module=github.com/mooncake-sidecar/sidecar \
	  --go-grpc_out=. --go-grpc_opt=module=github.com/mooncake-sidecar/sidecar store/embedded/storepb/store.proto internal/admin/adminpb/admin.proto conductor/api/conductorpb/conductor.proto

.PHONY: docs
docs: ## generate docs/configuration.md anew
	go run ./cmd/internal/reference

.PHONY: clean
clean: ## remove what was built (not .venv)
	rm -rf bin build
