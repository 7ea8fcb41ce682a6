# Builds, tests, measures and installs Adit. Every step has a time limit of its own.
#
#   make demo                  real programs plainly and under Adit, every byte compared
#   make test                  everything that needs no privilege
#   make lab                   real programs and the crates' own tests on tmpfs, ext4, XFS and btrfs, blocks relinked,
#                              short sequences cut off, snapshots recovered and the power of databases cut there, and
#                              DAX in a virtual machine, with power cuts: root, loop devices, packages
#   make enumerate             the crash enumerators alone, with the number of states that they tried in each mode
#   make lab-dax               all tests and programs on DAX in the virtual machine, which takes two hours
#   make lab-cuts CUTS=150     so many power cuts with another boot after each, in mode posix and in mode strict
#   make bench                 the measurements of `adit bench`
#   make install PREFIX=/usr   command, library, header, man pages, completions (DESTDIR is honoured)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
CARGO_TERM_PROGRESS_WHEN ?= never
export CARGO_TERM_PROGRESS_WHEN

RELEASE := $(CARGO_TARGET_DIR)/release
DEBUG := $(CARGO_TARGET_DIR)/debug
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# limit SECONDS: what does not end by itself is ended, and killed when it will not be.
limit = timeout --kill-after=10 $(1)

.PHONY: help
help:
	@sed -n 's/^#   //p' Makefile

.PHONY: release
release:
	$(call limit,1200) $(CARGO) build --locked --release -p adit-shim -p adit-cli -p adit-oracle

.PHONY: demo
demo: release
	$(call limit,600) $(RELEASE)/adit demo

.PHONY: bench
bench: release
	$(call limit,1800) $(RELEASE)/adit bench

# The cheap checks first: whoever breaks one of them learns it in a second.
.PHONY: test
test: test-tidy test-lab-runner test-clippy test-aarch64 test-doc test-cargo test-random test-deny

.PHONY: test-tidy
test-tidy:
	$(call limit,120) $(CARGO) fmt --all --check
	$(call limit,60) tests/tidy --self-test
	$(call limit,60) tests/tidy
	$(call limit,300) tests/rustix-backend --self-test
	$(call limit,120) tests/rustix-backend

# The lab's runner must find what a broken library does to files, before it judges ours.
.PHONY: test-lab-runner
test-lab-runner:
	$(call limit,120) lab/self-test

.PHONY: test-clippy
test-clippy:
	$(call limit,900) $(CARGO) clippy --locked --workspace --all-targets -- -D warnings

# Another processor: all but the preloaded library, whose entries are assembly, compiles for it.
AARCH64 := aarch64-unknown-linux-gnu
.PHONY: test-aarch64
test-aarch64:
	@if [ -d "$$(rustc --print target-libdir --target $(AARCH64) 2>/dev/null)" ]; then \
		$(call limit,900) $(CARGO) check --locked --target $(AARCH64) $(addprefix -p adit-,pmem pool store sim cli); \
	else \
		echo "note: rustup target add $(AARCH64): not checked that it compiles for that processor"; \
	fi

# For those who work on it: private items are documented too, and public ones may point at them.
# The command and the library are both called adit: two runs, or their pages would fall on each other.
DOC := $(CARGO) doc --locked --no-deps --document-private-items
DOC_FLAGS := -D warnings -A rustdoc::private_intra_doc_links
.PHONY: test-doc
test-doc:
	RUSTDOCFLAGS="$(DOC_FLAGS)" $(call limit,600) $(DOC) --workspace --exclude adit-shim
	RUSTDOCFLAGS="$(DOC_FLAGS)" $(call limit,600) $(DOC) -p adit-shim

# The tests of the command preload the library: it is built before they start. Half of what tests take they wait, for
# leases, limits and each other: two programs run at a time, each as many tests as there are processors.
.PHONY: test-cargo
test-cargo:
	$(call limit,900) $(CARGO) build --locked --workspace
	$(call limit,900) $(CARGO) test --locked --workspace --no-run
	$(call limit,60) tests/all --self-test
	$(call limit,1500) tests/all

# What these two do keeps one processor busy.
.PHONY: test-random
test-random:
	$(call limit,900) $(MAKE) --no-print-directory --jobs=2 --output-sync test-oracle test-torture

.PHONY: test-oracle
test-oracle:
	$(call limit,900) $(CARGO) build --locked --workspace
	$(call limit,600) tests/oracle $(DEBUG)

.PHONY: test-torture
test-torture:
	$(call limit,900) $(CARGO) build --locked --workspace
	$(call limit,600) tests/torture $(DEBUG)

.PHONY: test-deny
test-deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(call limit,300) $(CARGO) deny --locked check bans licenses sources; \
	else \
		echo "note: cargo-deny is not installed (cargo install cargo-deny --locked): licences and sources not checked"; \
	fi

.PHONY: enumerate
enumerate:
	$(call limit,1900) tests/enumerate

# Real programs as users run them on a disk, and with every file adopted at once on the other media, on XFS those that
# write most; and these in the mode that promises most, in which few writes of a short file are left to the kernel there.
STAGED := bash commands fsx full git killed leveldb limits lmdb mariadb model outsider postgres redis restic shared sqlite tail
# What closes many files, with the option that leaves these to the monitor.
CLOSING := bash commands cp git killed make model rsync tar
.PHONY: lab
lab: lab-programs lab-disks lab-vm

.PHONY: lab-programs
lab-programs: release
	$(call limit,120) lab/self-test $(RELEASE)
	$(call limit,520) lab/run --media ext4 --total 480
	$(call limit,740) lab/run --eager --media ram,btrfs --total 700
	$(call limit,440) lab/run --eager --media xfs --total 400 $(STAGED)
	ADIT_KERNEL_BLOCKS=16 $(call limit,640) lab/run --mode strict --media ram,ext4 --total 600 $(STAGED)
	$(call limit,140) lab/run --mode atomic --media ext4 --total 120 full
	ADIT_CLOSED=soon $(call limit,140) lab/run --mode atomic --media ext4 --total 120 $(CLOSING)

# What waits for loop devices for half of its time, beside each other.
.PHONY: lab-disks
lab-disks: release
	$(call limit,900) $(CARGO) build --locked --workspace
	$(call limit,900) $(CARGO) build --locked --workspace --examples
	$(call limit,900) $(CARGO) test --locked --workspace --no-run
	$(call limit,1900) $(MAKE) --no-print-directory --jobs=3 --output-sync=target lab-suite lab-relink lab-sequences lab-databases lab-snapshots

# The tests that `make test` runs in memory and beside the build, on the media of loop devices.
.PHONY: lab-suite
lab-suite:
	$(call limit,900) $(CARGO) build --locked --workspace
	$(call limit,900) $(CARGO) test --locked --workspace --no-run
	@$(call limit,1700) sh -c 'lab/suite --plant --total 160 && lab/suite --total 1500' || { [ $$? = 77 ] && [ "$${CI:-}" != true ] && echo "note: lab/suite was skipped"; }

# Staged bytes that become a file's without being copied, on loop devices.
.PHONY: lab-relink
lab-relink:
	$(call limit,900) $(CARGO) build --locked --workspace
	$(call limit,900) $(CARGO) build --locked --workspace --examples
	@$(call limit,600) sh -c 'lab/relink --bin $(DEBUG) --plant && lab/relink --bin $(DEBUG)' || { [ $$? = 77 ] && [ "$${CI:-}" != true ] && echo "note: lab/relink was skipped"; }

# Short sequences of operations on this machine's kernel: their processes die, the power of their disks is cut.
.PHONY: lab-sequences
lab-sequences: release
	@$(call limit,1000) lab/sequences --bin $(RELEASE) --count 20 --total 800 || { [ $$? = 77 ] && [ "$${CI:-}" != true ] && echo "note: lab/sequences was skipped"; }

# Copies of disks that programs write to, mounted and recovered beside them, on loop devices.
.PHONY: lab-snapshots
lab-snapshots: release
	@$(call limit,300) sh -c 'lab/snapshots --bin $(RELEASE) --plant && lab/snapshots --bin $(RELEASE)' || { [ $$? = 77 ] && [ "$${CI:-}" != true ] && echo "note: lab/snapshots was skipped"; }

# Clones of disks that databases write to, taken at one instant, recovered beside them and looked at by plain databases.
DATABASES := lab/databases --bin $(RELEASE)
.PHONY: lab-databases
lab-databases: release
	@$(call limit,700) sh -c '$(DATABASES) --total 200 --plant && $(DATABASES) --total 120 --cuts 2 --media ext4 --modes strict && $(DATABASES) --total 120 --cuts 2 --media xfs --modes atomic' || { [ $$? = 77 ] && [ "$${CI:-}" != true ] && echo "note: lab/databases was skipped"; }

# Of the crates' own tests and the cases of real programs what an emulated processor does in a minute or two; `make
# lab-dax` runs them all.
WHOLE := --whole 450 --whole-quick --whole-media ext4-dax --whole-tests shim-staged --whole-names required:: \
	--whole-programs shared,tail

# A stock kernel on emulated NVDIMMs: DAX file systems and power cuts. (What goes through a page cache is cut in
# modes posix, atomic and strict by `make lab-sequences`, too, so one of them is enough here.) Where the machine
# cannot be built it says so with status 77, which is a failure in continuous integration only.
.PHONY: lab-vm
lab-vm: release
	@$(call limit,2840) lab/vm/run --cuts 4 --engine-cuts 2 --publishing-cuts 1 --paths --seeds 1 --path-modes posix,strict --disk strict --also 6.12 $(WHOLE) --least 200 --total 2700 || { [ $$? = 77 ] && [ "$${CI:-}" != true ] && echo "note: lab/vm was skipped"; }

# All of the crates' own tests, and all cases of real programs, on ext4-DAX and XFS-DAX: an hour of emulation each. What
# the tests compile is compiled here, where it takes no time.
WITHOUT := --no-suite --no-plants --cuts 0 --engine-cuts 0 --sequences 0 --publishing "" --disk "" --staging ""
KERNEL ?= 6.1
.PHONY: lab-dax
lab-dax: lab-dax-programs lab-dax-tests

.PHONY: lab-dax-tests
lab-dax-tests: release
	$(call limit,900) $(CARGO) test --locked -p adit-shim --test staged --test injection -p adit-oracle --test programs
	$(call limit,6000) lab/vm/run --kernel $(KERNEL) $(WITHOUT) --whole 5400 --whole-programs ""

.PHONY: lab-dax-programs
lab-dax-programs: release
	$(call limit,6000) lab/vm/run --kernel $(KERNEL) $(WITHOUT) --whole 5400 --whole-tests ""

# The machine is killed and boots again, so often in mode posix and in mode strict: some ten seconds each.
CUTS ?= 150
CUTTING := --no-suite --sequences 0 --engine-cuts 0 --frozen 1 --publishing "" --disk "" --staging ""
.PHONY: lab-cuts
lab-cuts: release
	$(call limit,20000) lab/vm/run --kernel $(KERNEL) $(CUTTING) --mode posix --cuts $(CUTS) --least $(CUTS)
	$(call limit,20000) lab/vm/run --kernel $(KERNEL) $(CUTTING) --mode strict --cuts $(CUTS) --least $(CUTS)

.PHONY: install
install: release
	install -D -m 0755 $(RELEASE)/adit $(DESTDIR)$(PREFIX)/bin/adit
	install -D -m 0755 $(RELEASE)/libadit.so $(DESTDIR)$(PREFIX)/lib/adit/libadit.so
	install -D -m 0644 include/adit.h $(DESTDIR)$(PREFIX)/include/adit.h
	mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man1
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' include/adit.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/adit.pc
	$(RELEASE)/adit man $(DESTDIR)$(PREFIX)/share/man/man1
	mkdir -p $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(RELEASE)/adit completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/adit
	$(RELEASE)/adit completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_adit
	$(RELEASE)/adit completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/adit.fish

.PHONY: clean
clean:
	$(CARGO) clean
