# `make` alone lists the targets.

PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60

MYELIN := target/release/myelin
AS_ROOT = $(if $(filter-out 0,$(shell id -u)),sudo)
C_SOURCES = $(shell find crates/kernel/src/bpf crates/bench/reference crates/dpdk/src crates/cli/tests/deploy_faults -name '*.[ch]' ! -name 'vmlinux*')
SCRIPTS = scripts/fuzz scripts/install-deps scripts/leftovers scripts/test scripts/test-old-kernel .ci/run examples/containers/pair \
	examples/openflow/forwarder

# A shell that was open before rustup was installed lacks this directory.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test test-thorough test-old-kernel lint lint-rust lint-c lint-shell lint-structure lint-docs lint-python docs build install claims fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## install missing packages, build, run examples/tactile.yaml and print its report
	$(AS_ROOT) $(MYELIN) run examples/tactile.yaml

build: ## install missing packages and build (release)
	@scripts/install-deps
	cargo build --release --package myelin-cli

test: ## install missing packages and run the suite, the privileged tests as root
	@scripts/install-deps test
	@scripts/test

test-thorough: ## tests that measure or take minutes, fuzz targets, Linux 6.1 emulated (an hour, on a quiet machine)
	@scripts/install-deps fuzz
	@scripts/test thorough

test-old-kernel: ## tests of the kernel crate, examples, CPU hotplug, fq, HTB, VLAN, bonds on Linux 6.1, emulated (20 minutes)
	@scripts/install-deps test
	$(AS_ROOT) scripts/test-old-kernel

lint: ## check formatting, lints, documents and structure
	@scripts/install-deps test
	@$(MAKE) --no-print-directory --keep-going lint-structure lint-docs lint-python lint-shell lint-c lint-rust

lint-rust:
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet

lint-c:
	clang-format --dry-run -Werror $(C_SOURCES)

lint-shell:
	shellcheck $(SCRIPTS)

lint-python:
	python/generate-types --check
	cd python && ../target/python/bin/mypy

lint-structure:
	scripts/lint-structure

lint-docs:
	scripts/docs check

docs: ## install mdBook when it is missing, check the documents, build them as a book in target/book
	@scripts/install-deps docs
	@scripts/docs build

$(MYELIN):
	@$(MAKE) --no-print-directory build

install: $(MYELIN) ## copy myelin, its manual pages, completions and Python package to PREFIX (default /usr/local); run `make build` first
	install -D -m 755 $(MYELIN) $(DESTDIR)$(PREFIX)/bin/myelin
	cd python/src && find myelin -name '*.py' -o -name chain.json -o -name py.typed | \
		xargs -I{} install -D -m 644 {} $(DESTDIR)$(PREFIX)/lib/myelin/python/{}
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d $(DESTDIR)$(PREFIX)/share/man/man1
	$(MYELIN) man $(DESTDIR)$(PREFIX)/share/man/man1
	$(MYELIN) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/myelin
	$(MYELIN) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_myelin
	$(MYELIN) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/myelin.fish

# The revision of the sources; documents and results are no part of the program.
REVISION = $$(git describe --always)$$(git diff --quiet HEAD -- . ':!docs' || echo -dirty)

# install-deps first: the build includes ports and a reference over DPDK only if it finds libdpdk.
# A run that was interrupted goes on. Claims that are false or undecided end with exit status 4.
claims: ## run all experiments, write docs/results and the documents' tables and plots (QUICK=1: 25 minutes, else 2 hours)
	@scripts/install-deps test
	@$(MAKE) --no-print-directory build
	mkdir -p docs/results
	$(AS_ROOT) $(MYELIN) bench --all $(if $(QUICK),--quick) --results docs/results --revision "$(REVISION)" $(if $(REPORT_ONLY),--report-only) || status=$$?; \
	WRITE_DOCS=1 cargo test --quiet --package myelin-bench --test documents && exit $${status:-0}

fuzz: ## run each fuzz target for FUZZ_SECONDS (default 60)
	@scripts/install-deps fuzz
	scripts/fuzz '' $(FUZZ_SECONDS)

clean: ## remove all build output
	cargo clean
	rm -rf fuzz/target
