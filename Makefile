# The front door: each target does all it needs on a fresh machine. `make help` lists them.
BUILD ?= build
JOBS ?= $(shell nproc)

all: setup
	@cmake -S . -B $(BUILD) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS)

setup:
	@tools/setup.sh

test: all
	@ctest --test-dir $(BUILD) --output-on-failure

asan: setup
	@cmake -S . -B build-asan -DTV_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug >/dev/null
	@cmake --build build-asan -j $(JOBS)
	@ctest --test-dir build-asan --output-on-failure

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	@rm -rf build build-asan build-fuzz build-aarch64

help:
	@echo "make          build the program at build/tvgpu"
	@echo "make test     build and run all tests"
	@echo "make asan     the tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make format   clang-format every source file"
	@echo "make clean    remove what was built"

.PHONY: all setup test asan format clean help
