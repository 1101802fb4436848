# The tests of the emulated card once more: under AddressSanitizer and UndefinedBehaviorSanitizer (accesses of kernels),
# under ThreadSanitizer (races between the threads of a launch), and on the PTX that nvcc made, interpreted by
# tests/simt/ptx.cpp. Host libraries are the ordinary ones.
if(TV_SANITIZE)
  return() # make asan builds everything with the first two
endif()
include(CheckCXXSourceCompiles)
set(asan_flags -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all)
set(tsan_flags -O1 -fsanitize=thread)
set(legs)
foreach(leg asan tsan)
  list(JOIN ${leg}_flags " " CMAKE_REQUIRED_FLAGS)
  check_cxx_source_compiles("int main() { return 0; }" TV_HAVE_${leg})
  if(TV_HAVE_${leg})
    list(APPEND legs ${leg})
  endif()
endforeach()
unset(CMAKE_REQUIRED_FLAGS)
# PTX: kernels in fibers are not run, so that only their host side and the card's memory need AddressSanitizer.
if(TV_NVCC AND TV_HAVE_asan)
  set(ptx_flags -O1 -fsanitize=address)
  list(APPEND legs ptx)
endif()

# ThreadSanitizer wants addresses where it expects them, which randomisation can deny it.
set(tsan_prefix)
find_program(TV_SETARCH setarch)
mark_as_advanced(TV_SETARCH)
if(TV_SETARCH)
  execute_process(COMMAND ${TV_SETARCH} -R true RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
  if(refused EQUAL 0)
    set(tsan_prefix ${TV_SETARCH} -R)
  endif()
endif()

# Where a leg does not run a file's every test: what the names of those that it runs contain. The legs may take some 60, 90
# and 90 seconds of processor time.
set(tsan_only_attention rows_scratch flash_extreme plan_and_rerun flash_reference)
set(tsan_only_cudnn_rows decode)
set(tsan_only_linear slices schedules bad_values)
set(tsan_only_logprobs order)
set(tsan_only_moe batch_invariance matrices)
set(tsan_only_rows embed norm_order rmsnorm_formula rope swiglu moe_route sample)
set(tsan_only_kv append kernels)
set(tsan_only_expand expand_rows)
set(ptx_only_kv append kernels every_code bad_rows paths)
set(ptx_only_expand expand_rows)
set(ptx_only_logprobs large order refuses)

foreach(leg IN LISTS legs)
  add_library(tv_cuda_${leg} STATIC ${cuda_kernels} ${cuda_host} kernels/cuda/linear_cublaslt_absent.c
              tests/simt/runtime_simt.cpp tests/simt/cudnn_simt.cpp tests/simt/rig.c)
  target_compile_options(tv_cuda_${leg} PRIVATE ${${leg}_flags} $<$<COMPILE_LANGUAGE:CXX>:-x c++ -Wno-unknown-pragmas>)
  target_link_options(tv_cuda_${leg} PUBLIC ${${leg}_flags})
  target_link_libraries(tv_cuda_${leg} PUBLIC tv_cuda_lists tv_testing tv_kernels tv_base)
  foreach(source ${simt_tests})
    get_filename_component(test ${source} NAME_WE)
    string(REPLACE "test_" "" test ${test})
    if(leg STREQUAL ptx)
      set(name ptx_${test})
    else()
      set(name simt_${test}_${leg})
    endif()
    add_executable(${name} ${source})
    target_compile_options(${name} PRIVATE ${${leg}_flags})
    target_link_libraries(${name} PRIVATE tv_cuda_${leg} tv_cuda_lists)
    add_test(NAME ${name} COMMAND ${${leg}_prefix} $<TARGET_FILE:${name}> ${${leg}_only_${test}})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout}
                                            ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive")
    if(leg STREQUAL ptx)
      target_link_libraries(${name} PRIVATE tv_ptx ${CMAKE_DL_LIBS})
      set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON) # kernels are found by their symbols
      add_dependencies(${name} tv_cuda) # which makes the PTX
    endif()
  endforeach()
endforeach()

if(ptx IN_LIST legs)
  list(TRANSFORM ptx_files REPLACE "(.+)" "{\"\\1\", \"\"}" OUTPUT_VARIABLE quoted)
  list(JOIN quoted ", " quoted)
  add_library(tv_ptx OBJECT tests/simt/ptx.cpp)
  target_compile_definitions(tv_ptx PRIVATE "TV_PTX_FILES=${quoted}")
  add_test(NAME ptx_counts COMMAND ${CMAKE_SOURCE_DIR}/tests/simt/check_counts.sh ${TV_NVCC}
           ${CMAKE_SOURCE_DIR}/tests/simt/counts.txt ${CMAKE_BINARY_DIR})
  set_tests_properties(ptx_counts PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout})
endif()

add_executable(simt_selftest tests/simt/selftest.cpp)
target_compile_options(simt_selftest PRIVATE -Wno-unknown-pragmas)
if(tsan IN_LIST legs)
  target_compile_options(simt_selftest PRIVATE ${tsan_flags})
  target_link_options(simt_selftest PRIVATE ${tsan_flags})
endif()
add_test(NAME simt_selftest COMMAND ${tsan_prefix} $<TARGET_FILE:simt_selftest>)
