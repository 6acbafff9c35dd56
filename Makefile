# Every target sets up .venv by itself; `make PYTHON=python3.12 setup` picks the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
JSON ?= smoke.json
MESSAGING_JSON ?= messaging.json
PARTITION_JSON ?= partition.json
LEASE_JSON ?= lease.json
FAILOVER_OUT ?= failover
SHARDING_JSON ?= sharding.json
PEERS ?=

# Tests that depend on the event loop: they run a second time, on the stock one.
LOOP_TESTS := tests/node tests/wire tests/faults
# These start programs that choose their loop themselves, or are about something else.
ANY_LOOP := tests/processes/test_bench.py tests/processes/test_demo.py \
	tests/processes/test_processes.py tests/processes/test_many_singletons.py \
	tests/node/test_leases_page.py

# Tests in virtual time or of pure parts: these run on all cores.
PURE_TESTS := tests/gossip tests/singleton tests/stories tests/downing tests/sharding

# These keep all cores busy by themselves.
BUSY_TESTS := tests/processes/test_many_singletons.py

# Tests that wait most of their time, for a ttl or a process: many of these run at once.
WAITING_TESTS := tests/lease tests/node/test_leases_page.py tests/processes
WAITERS := 6

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-sharding test test-long test-etcd test-kubernetes check bench bench-messaging bench-gossip bench-partition bench-lease bench-failover bench-sharding clean

help:
	@echo 'make setup      create .venv with everything in it'
	@echo 'make demo       three processes, kill -9 of the host, a graceful leave; three levels side by side; 30 s'
	@echo 'make demo-sharding  carts by id while a member joins, one leaves, one is killed; 10 s'
	@echo 'make test       all tests with small counts, then once more on the stock event loop'
	@echo 'make test-long  the large counts, on all cores'
	@echo 'make test-etcd        what needs a real etcd; installs it from the distribution, as root'
	@echo 'make test-kubernetes  what needs a real API server; builds it once, five minutes, as root'
	@echo 'make check      lint, format, types, floors, style'
	@echo 'make bench      python -m bench smoke, written to $$(JSON)'
	@echo 'make bench-gossip     membership: experiments S1–S10 simulated, R1–R7 with processes'
	@echo 'make bench-partition  members cut apart, paused, killed; as root, in network namespaces'
	@echo 'make bench-lease      what a lease costs, takeovers, pauses, outages (SQLite)'
	@echo 'make bench-failover   each level against each fault, an hour; failover.html in $$(FAILOVER_OUT)'
	@echo 'make bench-sharding   what entities cost, rolling restarts, kills, a lost lease'
	@echo 'make bench-messaging  tells, asks, bulk; PEERS=casty,xoscar measures those too'

setup: $(STAMP)

# The stamp is only as young as what it depends on: a changed dependency installs again.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "no .venv: $(PYTHON) cannot make one. Needed is Python 3.11 or later with venv" >&2; \
	  echo "(Debian: apt-get install python3-venv), or name another: make PYTHON=…" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m bench.demo

demo-sharding: $(STAMP)
	$(BIN)/python -m bench.demo_sharding

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto $(PURE_TESTS)
	$(BIN)/python -m pytest --numprocesses $(WAITERS) $(WAITING_TESTS) $(addprefix --ignore=,$(BUSY_TESTS))
	$(BIN)/python -m pytest $(BUSY_TESTS)
	$(BIN)/python -m pytest $(addprefix --ignore=,$(PURE_TESTS) $(WAITING_TESTS))
	TENURE_TEST_LOOP=asyncio $(BIN)/python -m pytest $(LOOP_TESTS) $(addprefix --ignore=,$(ANY_LOOP))
	TENURE_TEST_LOOP=asyncio $(BIN)/python -m pytest --numprocesses $(WAITERS) tests/processes \
	  $(addprefix --ignore=,$(ANY_LOOP))

test-long: $(STAMP)
	$(BIN)/python -m pytest --long --numprocesses auto $(PURE_TESTS)
	$(BIN)/python -m pytest --long --numprocesses $(WAITERS) $(WAITING_TESTS) $(addprefix --ignore=,$(BUSY_TESTS))
	$(BIN)/python -m pytest --long $(BUSY_TESTS)
	$(BIN)/python -m pytest --long $(addprefix --ignore=,$(PURE_TESTS) $(WAITING_TESTS))
	TENURE_TEST_LOOP=asyncio $(BIN)/python -m pytest --long $(LOOP_TESTS) tests/processes

test-etcd: $(STAMP)
	tests/servers/install_etcd.sh
	$(BIN)/python -m pytest --etcd -m etcd --numprocesses 3 --dist loadscope tests/lease \
	  tests/node/test_remembered.py

test-kubernetes: $(STAMP)
	tests/servers/install_etcd.sh
	tests/servers/build_apiserver.sh
	$(BIN)/python -m pytest --kubernetes -m kubernetes tests/lease

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/style

bench: $(STAMP)
	$(BIN)/python -m bench smoke --json $(JSON)

bench-lease: $(STAMP)
	$(BIN)/python -m bench lease --store sqlite:leases.db --ttl-s 3 --rounds 100 --json $(LEASE_JSON)

bench-failover: $(STAMP)
	$(BIN)/python -m bench failover --rounds 10 --out $(FAILOVER_OUT)

bench-sharding: $(STAMP)
	$(BIN)/python -m bench sharding --json $(SHARDING_JSON)

bench-messaging: $(STAMP)
	$(BIN)/python -m bench messaging $(if $(PEERS),--peers $(PEERS)) --json $(MESSAGING_JSON)

bench-gossip: $(STAMP)
	$(BIN)/python -m bench gossip simulate --experiment all
	$(BIN)/python -m bench gossip processes --experiment all --members 10,25,50

bench-partition: $(STAMP)
	$(BIN)/python -m bench partition --nodes 5 --rounds 20 --heal-sweep --json $(PARTITION_JSON)
	$(BIN)/python -m bench partition --nodes 3,10,30,100 --experiment frames

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
