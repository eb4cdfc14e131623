# Every target says what it does and exits non-zero when it falls short.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
ONCE    ?=
REGIONS ?=
COMMA   := ,
BENCH   ?=
QUICK   ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X lightmetrics.dev/lightmetrics/internal/platform/telemetry.version=$(VERSION)
# The packages to test: all, or "make test PKG=./internal/acceptance/accept/...".
PKG     ?=
# Tests of whole systems share the machine with nothing else.
SYSTEM   = $(shell $(GO) list ./test/...)
SAY     := @printf '\n== %s\n'

.PHONY: help build install demo test vet house lint unit race fuzz badinput conformance s3-suite s3-clients robustness models sim mutants soak bench proto tidy clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

build: ## build the binaries into bin/
	$(SAY) "build: bin/lightmetrics, bin/lmctl"
	$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/ ./cmd/...

# make install DESTDIR=/tmp/stage PREFIX=/usr is how packages are made.
PREFIX  ?= /usr/local
DESTDIR ?=
UNITS   ?= $(PREFIX)/lib/systemd/system
SHARE    = $(DESTDIR)$(PREFIX)/share

install: build ## install binaries, systemd units, settings and shell completion (PREFIX, DESTDIR)
	$(SAY) "install: $(DESTDIR)$(PREFIX)"
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(UNITS) $(SHARE)/doc/lightmetrics/settings \
	  $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	install -m 0755 bin/lightmetrics bin/lmctl $(DESTDIR)$(PREFIX)/bin/
	install -m 0644 deploy/settings/*.yaml $(SHARE)/doc/lightmetrics/settings/
	install -D -m 0644 -t $(SHARE)/doc/lightmetrics/settings/regions deploy/settings/regions/*.yaml
	for u in deploy/systemd/*.service; do sed 's#/usr/local/bin/#$(PREFIX)/bin/#' $$u >$(DESTDIR)$(UNITS)/$$(basename $$u); chmod 0644 $(DESTDIR)$(UNITS)/$$(basename $$u); done
	for b in lightmetrics lmctl; do \
	  bin/$$b completion bash >$(SHARE)/bash-completion/completions/$$b; \
	  bin/$$b completion zsh >$(SHARE)/zsh/site-functions/_$$b; \
	  bin/$$b completion fish >$(SHARE)/fish/vendor_completions.d/$$b.fish; \
	done

demo: build ## run the main job on this machine (ONCE=1: run through and exit; REGIONS=3: three regions, of which one is killed and one cut off)
	$(SAY) "demo: $(if $(REGIONS),$(REGIONS) regions under one linearizer,embedded store$(COMMA) two collectors$(COMMA) reconciler$(COMMA) query$(COMMA)) and an agent that reads this host"
	bin/lightmetrics demo $(if $(REGIONS),--regions $(REGIONS)) $(if $(ONCE),--once)

test: vet lint unit ## everything that must pass in CI
	$(SAY) "test: all passed"

# The checkers have their versions in tools/go.mod, apart from the versions of the build.
CHECKERS := bin/staticcheck bin/deadcode bin/house
$(CHECKERS) &: tools/go.mod tools/go.sum $(wildcard tools/house/*.go)
	cd tools && GOWORK=off GOBIN=$(CURDIR)/bin $(GO) install honnef.co/go/tools/cmd/staticcheck golang.org/x/tools/cmd/deadcode ./house
	@touch $(CHECKERS)

vet: bin/staticcheck ## gofmt, go vet and staticcheck: no findings
	$(SAY) "vet: gofmt, go vet, staticcheck"
	@bad=$$(gofmt -l $$(git ls-files '*.go' | grep -v '^proto/gen/')); if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi
	$(GO) vet -stdmethods=false ./... # Prometheus iterators have a Seek of their own
	bin/staticcheck ./...

house: $(CHECKERS) ## measure the tree: size, complexity, unreachable functions, arrows between files (V=1: name them)
	$(SAY) "house: how the tree is built"
	@bin/house $(if $(V),-v)

lint: ## the rules of the house: imports, determinism of the core
	$(SAY) "lint: imports run downwards, the core is deterministic"
	$(GO) test -count=1 ./internal/lint

unit: ## all tests: units, conformance of the stores, crash matrices, then end to end on real processes
	$(SAY) "unit: packages, store conformance, races, crash matrices"
	$(GO) test -parallel 8 -timeout 20m $(filter-out $(SYSTEM),$(or $(PKG),$(shell $(GO) list ./...)))
	$(if $(PKG),,@printf '\n== unit: whole systems on real processes, one package after the other\n')
	$(if $(PKG),,$(GO) test -p 1 -parallel 3 -timeout 20m $(SYSTEM))

race: ## the packages with goroutines under the race detector
	$(SAY) "race: go test -race"
	$(GO) test -race -timeout 40m ./pkg/... ./internal/... ./agent/... ./client/... ./services/...

fuzz: ## every fuzz target for 30 s each (FUZZTIME=…)
	$(SAY) "fuzz: each target for $(or $(FUZZTIME),30s)"
	@for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | sort); do \
	  for t in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$f | cut -c6-); do \
	    echo "-- $$(dirname $$f) $$t"; $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime $(or $(FUZZTIME),30s) -fuzzminimizetime 100x $$(dirname $$f); \
	  done; done

badinput: ## the corpus of bad inputs on every face, and 64 decompression bombs at once
	$(SAY) "badinput: typed errors, no panic, bounded memory, nothing written"
	$(GO) test -count=1 ./test/badinput

conformance: ## the store suite against the embedded store and versitygw; PromQL scripts
	$(SAY) "conformance: objstore/storetest on every back end, promqltest scripts"
	$(GO) test -count=1 -v -run 'Conformance' ./internal/objstore/... ./internal/queries/promstore/... ./test/...

s3-suite: ## another project's tests of the S3 API (versitygw's) against the embedded store (RUN=part of a name): counts, and which fail
	$(SAY) "s3-suite: versitygw's integration tests against the embedded object store"
	$(GO) run ./test/s3suite $(if $(RUN),-run '$(RUN)')

s3-clients: ## other projects' S3 clients in their default settings against the embedded store, with a file of 1 GiB (MIB=n)
	$(SAY) "s3-clients: aws-cli, boto3, the SDKs for JavaScript and Go, s3cmd, rclone and restic, those that are here"
	S3CLIENTS_LARGE_MIB=$(or $(MIB),1024) $(GO) test -count=1 -v -timeout 1h ./test/s3clients | grep -v '^=== '

models: ## the protocol models and their mutants with spin (LIGHTMETRICS_SOAK=1: larger scopes)
	$(SAY) "models: docs/protocol/models, every state at small scope; mutants must be violated"
	$(GO) test -count=1 -v -timeout 4h ./test/models

sim: ## the deterministic simulations: acceptance and garbage collection (SCHEDULES=n SEED=s), the journal, the linearizer's claims, its regions
	$(SAY) "sim: $(or $(SCHEDULES),100000) schedules from seed $(or $(SEED),1): schedules, operations, violations"
	$(GO) run ./test/sim -schedules $(or $(SCHEDULES),100000) -seed $(or $(SEED),1)
	JOURNAL_SIM_SCHEDULES=10000 $(GO) test -count=1 -v -timeout 1h -run '^TestSimulation$$' ./internal/acceptance/journal
	CLAIMS_SIM_SCHEDULES=20000 $(GO) test -count=1 -v -timeout 1h -run '^TestSimulation$$' ./internal/coordination/claims
	REGIONS_SIM_SCHEDULES=$(or $(SCHEDULES),2000) REGIONS_SIM_SEED=$(or $(SEED),1) $(GO) test -count=1 -v -timeout 4h -run '^TestSimulation(OfMovers|UnderLoad)?$$' ./internal/coordination/regions

mutants: ## planted protocol bugs: the simulation must catch each (WRITE=1 writes docs/protocol/mutants.md)
	$(SAY) "mutants: each planted bug against the simulation"
	$(GO) run ./test/sim/mutants $(if $(WRITE),-write docs/protocol/mutants.md)

robustness: ## kill at every failpoint twice, pauses, a faulty store, a cut network (LIGHTMETRICS_SOAK=1: long; POINTS=part of a name)
	$(SAY) "robustness: faults on real processes"
	$(GO) test -count=1 -timeout 4h -v ./test/robustness

soak: ## long fault runs (ROUNDS=n SCHEDULES=n): kills, races, failpoints, power loss, models, simulation
	$(SAY) "soak: kill -9 rounds, races, failpoints, power loss and models at full size, then the simulation"
	LIGHTMETRICS_SOAK=1 ROUNDS=$(or $(ROUNDS),500) $(GO) test -p 1 -count=1 -timeout 24h -v ./agent/queue ./internal/acceptance/spool \
	  ./internal/acceptance/journal ./services/objectstore ./services/objectstore/internal/engine ./services/objectstore/internal/mirror ./services/objectstore/internal/redundancy ./test/models ./test/robustness ./test/regions ./test/e2e
	$(GO) run ./test/sim -schedules $(or $(SCHEDULES),10000000) -seed $$RANDOM
	REGIONS_SIM_SCHEDULES=400000 REGIONS_SIM_SEED=$$RANDOM $(GO) test -count=1 -v -timeout 24h -run '^TestSimulation(OfMovers|UnderLoad)?$$' ./internal/coordination/regions

bench: build ## benchmarks against baselines and peers in one run (BENCH=name, QUICK=1); writes build/bench.json and docs/benchmarks.md
	$(SAY) "bench: build/$(if $(QUICK),quick,bench).json$(if $(QUICK),, and docs/benchmarks.md)"
	$(GO) run ./test/bench $(if $(QUICK),-quick) $(if $(BENCH),-run '$(BENCH)') $(if $(QUICK),-out build/quick.json,-doc docs/benchmarks.md -out build/bench.json)

proto: ## regenerate proto/gen (installs buf and the plugins into bin/)
	$(SAY) "proto: lint and generate"
	GOWORK=off GOBIN=$(CURDIR)/bin $(GO) install github.com/bufbuild/buf/cmd/buf@v1.73.0
	cd tools && GOWORK=off GOBIN=$(CURDIR)/bin $(GO) install tool
	bin/buf lint
	bin/buf generate

tidy: ## go mod tidy in both modules
	$(GO) mod tidy
	cd tools && GOWORK=off $(GO) mod tidy

clean: ## remove what was built
	rm -rf bin build
